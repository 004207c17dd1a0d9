// Foreign bytes: the files of tests/fuzz are taken or refused as their names say, and seeded
// mutations of them are taken or refused. script/test --fuzz lets libFuzzer go on from there.

#include <gtest/gtest.h>

#include <string_view>

#include "support/fuzz/core/counts.h"
#include "support/fuzz/core/deepspeed.h"
#include "support/fuzz/core/environment.h"
#include "support/fuzz/core/error_file.h"
#include "support/fuzz/core/hdf5.h"
#include "support/fuzz/core/hjson.h"
#include "support/fuzz/core/http_answer.h"
#include "support/fuzz/core/http_request.h"
#include "support/fuzz/core/idx.h"
#include "support/fuzz/core/image_archive.h"
#include "support/fuzz/core/image_tensors.h"
#include "support/fuzz/core/node_list.h"
#include "support/fuzz/core/npy.h"
#include "support/fuzz/core/picture.h"
#include "support/fuzz/core/rendezvous.h"
#include "support/fuzz/core/rendezvous_body.h"
#include "support/fuzz/core/report.h"
#include "support/fuzz/core/toml.h"
#include "support/fuzz_corpus_test.h"

namespace lockstep::fuzz {
namespace {

using CoreCorpusTest = test::CorpusTest;

TEST_P(CoreCorpusTest, IsTakenOrRefusedAsItsNamesSay) { expect_what_names_say(); }
TEST_P(CoreCorpusTest, MutationsAreTakenOrRefused) { read_mutations(); }

constexpr std::string_view kJson = "[{\"message\":0.1e9,\\u0000}]";
constexpr std::string_view kHjson = "{}[],:\"'''#///**/\\u12true null-1.5e3\n";
constexpr std::string_view kNumbers("\x00\x00\x00\x01\xff\xff\xff\xff\x7f\xff\xff\xff\x80\x00\x00\x00", 16);

INSTANTIATE_TEST_SUITE_P(
    Corpus, CoreCorpusTest,
    testing::Values(
        test::CorpusCase{"counts", takes_counts, "(x2),1(x10)"},
        test::CorpusCase{"deepspeed", takes_deepspeed, "\"auto\": true, null 1e9 -1 {} [] 'Adam' stage", 100},
        test::CorpusCase{"environment", takes_environment, "=0\n=1\nRANK=1\nSLURM_NODEID=1\nWORLD_SIZE=2\n"},
        test::CorpusCase{"error_file", takes_error_file, kJson},
        test::CorpusCase{"hdf5", takes_hdf5, kNumbers, 1000}, test::CorpusCase{"hjson", takes_hjson, kHjson},
        test::CorpusCase{"http_answer", takes_http_answer, "HTTP/1.1 200\r\n\r\n{\"run_id\":0}", 20},
        test::CorpusCase{"http_request", takes_http_request, "GET /?q HTTP/1.1\r\nHost: \t:80\r\n\r\n"},
        test::CorpusCase{"idx", takes_idx, kNumbers, 1000},
        test::CorpusCase{"image_archive", takes_image_archive, kNumbers, 100},
        test::CorpusCase{"image_tensors", takes_image_tensors, kNumbers},
        test::CorpusCase{"node_list", takes_node_list, "[0-9],n10[1-2]x"},
        test::CorpusCase{"npy", takes_npy, kNumbers}, test::CorpusCase{"picture", takes_picture, kNumbers},
        test::CorpusCase{"toml", takes_toml, "[a.b]\n=\"'''{}1979-05-27T07:32:00Z,0x1e9\n"}),
    [](const auto& info) { return std::string(info.param.name); });

// A stream ends where it breaks the protocol, so a hostile file may begin with messages: what counts
// is that nothing else than messages comes out of it.
TEST(WireFuzzTest, TheCorpusIsUnderstood) {
  int messages = 0;
  for (const test::FuzzFile& file : test::fuzz_corpus("rendezvous")) messages += count_messages(file.bytes);
  EXPECT_GE(messages, 20) << "one of each kind at least";
}

TEST(WireFuzzTest, MutationsNeverDoMoreThanThrow) {
  test::for_each_mutation(test::fuzz_corpus("rendezvous"), 2000, kJson, 20260101,
                          [](const std::string& bytes) { takes_rendezvous(bytes); });
}

// The header is right, so that the mutations reach the fields.
TEST(WireFuzzTest, MutatedBodiesNeverDoMoreThanThrow) {
  test::for_each_mutation(test::fuzz_corpus("rendezvous_body"), 2000, kJson, 20260102,
                          [](const std::string& body) { takes_rendezvous_body(body); });
}

// Whatever the files of a run hold, there is a page.
TEST(ReportCorpusTest, EveryFileOfARunMayBeForeign) {
  for (const test::FuzzFile& file : test::fuzz_corpus("report")) takes_report(file.bytes);
  test::for_each_mutation(test::fuzz_corpus("report"), 100, "nan,\"{}[]:,\n\r0123456789-e.inf", 20261115,
                          [](const std::string& bytes) { takes_report(bytes); });
}

}  // namespace
}  // namespace lockstep::fuzz
