// The unchanged files, each between two symbols. The paths come from CMake.

.section .rodata

.globl lockstep_chart_js_begin
.globl lockstep_chart_js_end
lockstep_chart_js_begin:
.incbin LOCKSTEP_CHART_JS
lockstep_chart_js_end:

.globl lockstep_page_script_begin
.globl lockstep_page_script_end
lockstep_page_script_begin:
.incbin LOCKSTEP_PAGE_SCRIPT
lockstep_page_script_end:

.globl lockstep_page_style_begin
.globl lockstep_page_style_end
lockstep_page_style_begin:
.incbin LOCKSTEP_PAGE_STYLE
lockstep_page_style_end:

// Without this the linker makes the program's stack executable.
.section .note.GNU-stack,"",@progbits
