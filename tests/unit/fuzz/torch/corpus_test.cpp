// Foreign bytes that LibTorch's tensors are made of: as in tests/unit/fuzz/core.

#include <gtest/gtest.h>

#include <string>

#include "support/fuzz/torch/deepspeed_pickle.h"
#include "support/fuzz/torch/exported_archive.h"
#include "support/fuzz/torch/exported_program.h"
#include "support/fuzz/torch/manifest.h"
#include "support/fuzz/torch/pickle.h"
#include "support/fuzz/torch/safetensors.h"
#include "support/fuzz/torch/script_archive.h"
#include "support/fuzz/torch/token_file.h"
#include "support/fuzz/torch/tokenizer.h"
#include "support/fuzz/torch/torch_file.h"
#include "support/fuzz_corpus_test.h"

namespace lockstep::fuzz {
namespace {

using TorchCorpusTest = test::CorpusTest;

constexpr std::string_view kPickle = "(]})2\x85\x94.tRQb";

TEST_P(TorchCorpusTest, IsTakenOrRefusedAsItsNamesSay) { expect_what_names_say(); }
TEST_P(TorchCorpusTest, MutationsAreTakenOrRefused) { read_mutations(); }

INSTANTIATE_TEST_SUITE_P(
    Corpus, TorchCorpusTest,
    testing::Values(test::CorpusCase{"deepspeed_pickle", takes_deepspeed_pickle, kPickle, 100},
                    test::CorpusCase{"exported_archive", takes_exported_archive, "PK\x03\x04PK\x01\x02", 50},
                    test::CorpusCase{"exported_program", takes_exported_program,
                                     R"({"as_tensor":{"name":"x"}})", 100},
                    test::CorpusCase{"script_archive", takes_script_archive, kPickle, 1000},
                    test::CorpusCase{"token_file", takes_token_file,
                                     std::string_view("\x88\xd8\x34\x01\x01\x00\x00\x00", 8)},
                    test::CorpusCase{"tokenizer", takes_tokenizer, "\"h e\"<|endoftext|>:{}[]", 100},
                    test::CorpusCase{"torch_file", takes_torch_file, "PK\x03\x04PK\x01\x02", 50}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::fuzz
