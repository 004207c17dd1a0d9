#pragma once

// Included by every source of a portable build (LOCKSTEP_PORTABLE).
#if defined(__x86_64__) || defined(__aarch64__)
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
