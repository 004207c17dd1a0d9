#include "launcher/slurm/sbatch_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/process.h"
#include "support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

TEST(SlurmVersionTest, ReadsWhatSlurmPrints) {
  EXPECT_EQ(parse_slurm_version("slurm 22.05.8\n"), (SlurmVersion{22, 5}));
  EXPECT_EQ(parse_slurm_version("slurm-wlm 22.05.8\n"), (SlurmVersion{22, 5}));
  EXPECT_EQ(parse_slurm_version("slurm 24.11.0-0rc1"), (SlurmVersion{24, 11}));
  EXPECT_EQ(parse_slurm_version("23.11"), (SlurmVersion{23, 11}));
  EXPECT_EQ(parse_slurm_version("23.11")->to_string(), "23.11");
  EXPECT_EQ(parse_slurm_version("22.05")->to_string(), "22.05");
}

TEST(SlurmVersionTest, RefusesTheRest) {
  for (const char* text :
       {"", "slurm", "22", "22.", ".05", "22.5", "22.13", "22.00", "x.05", "slurm 22.05x", "-1.05"}) {
    EXPECT_EQ(parse_slurm_version(text), std::nullopt) << "'" << text << "'";
  }
}

TEST(SlurmVersionTest, KnowsWhoForgets) {
  EXPECT_FALSE(srun_forgets_cpus_per_task({21, 8}));
  EXPECT_TRUE(srun_forgets_cpus_per_task({22, 5}));
  EXPECT_TRUE(srun_forgets_cpus_per_task({23, 2}));
  EXPECT_FALSE(srun_forgets_cpus_per_task({23, 11}));
  EXPECT_FALSE(has_gpu_options({18, 8}));
  EXPECT_TRUE(has_gpu_options({19, 5}));
}

TEST(SlurmVersionTest, WithoutSlurmItIsUnknown) {
  EXPECT_EQ(installed_slurm_version({{"PATH", "/nonexistent"}}), std::nullopt);
}

TEST(ShellQuoteTest, LeavesPlainWordsAlone) {
  EXPECT_EQ(shell_quote("--lr=0.1"), "--lr=0.1");
  EXPECT_EQ(shell_quote("./a/b-c_d.e"), "./a/b-c_d.e");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's"), R"('it'\''s')");
}

// A real shell returns every byte.
TEST(ShellQuoteTest, AShellReadsTheSameBytes) {
  std::string all_bytes;
  for (int c = 1; c < 256; ++c) all_bytes += static_cast<char>(c);
  for (const std::string& text :
       {std::string("$HOME"), std::string("$(echo x)"), std::string("`echo x`"), std::string("a\nb\n\nc"),
        std::string("'\"'\"\\''"), std::string("*"), std::string("~"), std::string("#x"), std::string("!x"),
        std::string("\\"), std::string("-n"), std::string("gr\u00fc\u00df \u4e16\u754c"),
        std::string("a;b|c&d>e"), all_bytes}) {
    base::ProcessOptions options;
    options.program = "/bin/bash";
    options.arguments = {"bash", "-c", "printf '%s' " + shell_quote(text)};
    const auto result = base::run_program(options, std::chrono::minutes(1));
    ASSERT_TRUE(result);
    EXPECT_EQ(result->output, text);
  }
}

TEST(DirectiveQuoteTest, EscapesWhatSbatchReads) {
  EXPECT_EQ(directive_quote("sine"), "sine");
  EXPECT_EQ(directive_quote("my job # 1"), "\"my job # 1\"");
  EXPECT_EQ(directive_quote(R"(a"b\c)"), R"("a\"b\\c")");
  EXPECT_EQ(directive_quote("$HOME `id` 'x'"), "\"$HOME `id` 'x'\"");
}

TEST(DirectiveQuoteTest, CannotHoldANewline) { EXPECT_THROW(directive_quote("a\nb"), InternalError); }

using testing::AllOf;
using testing::HasSubstr;

using Check = void (*)(std::string_view, const std::string&);

void expect_accepts(Check check, const std::vector<std::string>& values) {
  for (const std::string& value : values) EXPECT_NO_THROW(check("--flag", value)) << "'" << value << "'";
}

// The error names the flag, the value and the rule.
void expect_refuses(Check check, const std::string& rule, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    try {
      check("--flag", value);
      ADD_FAILURE() << "'" << value << "' was accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("[slurm] --flag must"), HasSubstr("'" + value + "'"), HasSubstr(rule)));
    }
  }
}

TEST(SbatchValuesTest, Time) {
  expect_accepts(check_time, {"30", "1:30:00", "2-12", "1-2:3:4", "UNLIMITED"});
  expect_refuses(check_time, "days-hours", {"", "0", "1h", "1:2:3:4", "tomorrow", "-1", "1\n"});
}

TEST(SbatchValuesTest, Memory) {
  expect_accepts(check_memory, {"0", "4000", "16G", "512m", "1T", "900K"});
  expect_refuses(check_memory, "suffix K, M, G or T",
                 {"", "G", "16GB", "1.5G", "-1", "+4", " 4", "4 G", "16P"});
}

TEST(SbatchValuesTest, Array) {
  expect_accepts(check_array, {"0", "0-15", "1,3,5-9:2", "0-99%4", "7,7", "4000000"});
  expect_refuses(check_array, "FIRST-LAST:STEP",
                 {"", "a", "3-1", "1-", "-1", "1,", ",1", "1,,2", "1-5:0", "1:2", "0-9%", "0-9%0", "0-9%2,3",
                  "1 2", "4000001", "1-2-3", "+1"});
}

TEST(SbatchValuesTest, Signal) {
  expect_accepts(check_signal, {"USR1", "SIGUSR2@120", "10@60", "TERM@0", "INT"});
  expect_refuses(
      check_signal, "",
      {"", "USR3", "usr1", "USR1@", "USR1@x", "USR1@65536", "0", "99", "@60", "USR1 @60", "R:USR1"});
  expect_refuses(check_signal, "not to the ranks", {"B:USR1@60"});
}

TEST(SbatchValuesTest, NamesAndLines) {
  expect_accepts(check_name, {"gpu", "a,b", "m_123", "gcc/12.2"});
  expect_refuses(check_name, "", {"", "a b", "-x", "a\nb", "a\tb"});
  expect_accepts(check_line, {"a b", "$HOME `id` \"'\\", "gr\u00fc\u00df"});
  expect_refuses(check_line, "without control characters",
                 {"", "a\nb", "a\rb", "\x7f", std::string(4097, 'x')});
}

TEST(SbatchValuesTest, Counts) {
  EXPECT_EQ(parse_count("--nodes", "8"), 8);
  EXPECT_EQ(parse_gpus("--gpus-per-node", "4"), 4);
  EXPECT_EQ(parse_gpus("--gpus-per-node", "a100:4"), 4);
  const Check count = [](std::string_view flag, const std::string& value) { parse_count(flag, value); };
  expect_refuses(count, "from 1 to 1048576",
                 {"", "0", "-1", "a", "1.5", "2x", "1048577", "99999999999999999999", " 1"});
  const Check gpus = [](std::string_view flag, const std::string& value) { parse_gpus(flag, value); };
  expect_refuses(gpus, "TYPE:NUMBER", {"", "0", ":4", "a100:", "a b:4", "a100:x", "gpu:a100:4", "2048"});
}

std::string refusal(const SbatchRequest& request) {
  try {
    check_request(request);
    return "accepted";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(SbatchRequestTest, RanksAreOneAGpuUnlessSaid) {
  EXPECT_EQ((SbatchRequest{.command = {"x"}}).ranks_per_node(), 1);
  EXPECT_EQ((SbatchRequest{.command = {"x"}, .gpus_per_node = "a100:4"}).ranks_per_node(), 4);
  EXPECT_EQ((SbatchRequest{.command = {"x"}, .gpus_per_node = "4", .ntasks_per_node = 2}).ranks_per_node(),
            2);
}

TEST(SbatchRequestTest, ChecksWhatBelongsTogether) {
  EXPECT_EQ(refusal({.command = {"x"}, .gpus_per_node = "2", .ntasks_per_node = 4}),
            "[slurm] two ranks would share one GPU, ask for --gpus-per-node=4: --ntasks-per-node=4, "
            "2 GPUs of each node");
  EXPECT_EQ(refusal({.command = {"x"}, .gpu_vendor = GpuVendor::kAmd}),
            "[slurm] --gpu-vendor has no effect without --gpus-per-node: add --gpus-per-node, or leave out "
            "--gpu-vendor");
  EXPECT_THAT(refusal({.command = {}}), HasSubstr("the program is missing"));
  EXPECT_THAT(refusal({.command = {""}}), HasSubstr("the program is missing"));
  EXPECT_THAT(refusal({.command = {"-x"}}), HasSubstr("must not begin with a dash"));
  EXPECT_THAT(refusal({.command = {"x"}, .job_name = "a/b"}), HasSubstr("--output"));
  EXPECT_EQ(refusal({.command = {"x"}, .job_name = "a/b", .output = "log"}), "accepted");
  EXPECT_THAT(refusal({.command = {"x"}, .modules = {"good", "bad one"}}), HasSubstr("--module must"));
}

TEST(SbatchRequestTest, GpusOfANodeComeFromAnyOfThreeFlags) {
  EXPECT_EQ((SbatchRequest{.command = {"x"}, .nodes = 2, .gpus = "a100:8"}).ranks_per_node(), 4);
  EXPECT_EQ((SbatchRequest{.command = {"x"}, .gres = "nvme:1,gpu:a100:2"}).ranks_per_node(), 2);
  EXPECT_EQ((SbatchRequest{.command = {"x"}, .gres = "nvme:4"}).ranks_per_node(), 1);
  EXPECT_EQ(
      refusal({.command = {"x"}, .nodes = 3, .gpus = "4"}),
      "[slurm] --gpus must be divisible by --nodes, so that each node gets as many: --gpus=4, --nodes=3");
  EXPECT_EQ(refusal({.command = {"x"}, .gpus_per_node = "2", .gres = "gpu:2"}),
            "[slurm] GPUs are asked for twice, leave one out: --gpus-per-node=2, --gres=gpu:2");
  EXPECT_EQ(refusal({.command = {"x"}, .gpus_per_node = "2", .gres = "nvme:1"}), "accepted");
}

TEST(SbatchRequestTest, RefusesFlagsThatExcludeEachOther) {
  EXPECT_THAT(refusal({.command = {"x"}, .conda = "a", .venv = "b"}),
              HasSubstr("--conda and --venv are two"));
  EXPECT_THAT(refusal({.command = {"x"}, .binds = {"/a"}}), HasSubstr("--bind has no effect without"));
  EXPECT_THAT(refusal({.command = {"x"}, .mail_user = "me"}), HasSubstr("--mail-user has no effect without"));
  EXPECT_THAT(refusal({.command = {"x"}, .hint = "nomultithread", .cpu_bind = "cores"}),
              HasSubstr("srun refuses them together"));
  EXPECT_THAT(refusal({.command = {"x"}, .cpu_bind = "mask_cpu:f,f0"}), HasSubstr("add --style srun"));
  EXPECT_EQ(refusal({.command = {"x"}, .style = SlurmStyle::kSrun, .cpu_bind = "mask_cpu:f,f0"}), "accepted");
}

// What Princeton's page advises against is possible, and said.
TEST(SbatchRequestTest, WarnsOfGpusWithoutARankAndOfOneGpuPerNode) {
  using testing::ElementsAre;
  EXPECT_THAT(request_warnings({.command = {"x"}, .gpus_per_node = "4", .ntasks_per_node = 2}),
              ElementsAre("each node has 4 GPUs and 2 ranks, and a rank uses one GPU: ask for "
                          "--ntasks-per-node=4 or --gpus-per-node=2"));
  EXPECT_THAT(
      request_warnings({.command = {"x"}, .nodes = 4, .gpus_per_node = "1"}),
      ElementsAre("4 nodes with one GPU each: gradients then always cross the network. Use all GPUs of "
                  "a node before a second node, as --nodes=1 --gpus-per-node=4"));
  EXPECT_THAT(request_warnings({.command = {"x"}, .nodes = 3, .gpus_per_node = "2"}), testing::IsEmpty());
  EXPECT_THAT(request_warnings({.command = {"x"}, .nodes = 3}), testing::IsEmpty());
}

TEST(SbatchValuesTest, Gres) {
  EXPECT_EQ(parse_gres("--gres", "gpu"), 1);
  EXPECT_EQ(parse_gres("--gres", "gpu:a100"), 1);
  EXPECT_EQ(parse_gres("--gres", "gpu:a100:2,gpu:v100:1,nvme:9"), 3);
  const Check gres = [](std::string_view flag, const std::string& value) { parse_gres(flag, value); };
  expect_refuses(gres, "", {"", "gpu:", "gpu::2", "gpu:a:b:2", "gpu:a:x", "gpu 2", "gpu:2,"});
}

TEST(SbatchValuesTest, MailBindingAndFolders) {
  expect_accepts(check_mail_type, {"begin", "BEGIN,END", "ALL", "TIME_LIMIT_80"});
  expect_refuses(check_mail_type, "must be one of NONE, BEGIN", {"", "start", "BEGIN,", "BEGIN END"});
  expect_accepts(check_cpu_bind,
                 {"cores", "none", "verbose,cores", "map_cpu:1,9", "v,mask_cpu:0xfe,0xfe00*2"});
  expect_refuses(check_cpu_bind, "map_cpu:1,9",
                 {"core", "map_cpu:", "map_cpu:a b", "mask_cpu:$x", "map_ldom"});
  expect_accepts(check_bind, {"/scratch", "/scratch:/data", "/my folder:/data:ro"});
  expect_refuses(check_bind, "", {"", ":/data", "/a:/b:ro:x", "/a,/b", "/a\n"});
}

TEST(SbatchValuesTest, OtherOptions) {
  expect_accepts(check_sbatch_option,
                 {"reservation=tutorial", "--constraint=a100&nvlink", "no-kill", "comment=a b"});
  expect_refuses(check_sbatch_option, "long name", {"-C", "--", "C a100", "=3", "Nodes=2"});
  expect_refuses(check_sbatch_option, "use lockstep slurm --nodes", {"nodes=3", "--nodes=3"});
  expect_refuses(check_sbatch_option, "contradicts", {"ntasks=7", "--wrap=x"});
}

using testing::Not;

constexpr SlurmStyle kStyles[] = {SlurmStyle::kTorchrun, SlurmStyle::kSrun, SlurmStyle::kSpawn};

SbatchRequest full_request(SlurmStyle style) {
  SbatchRequest request{.command = {"./sine", "--lr", "0.1"}};
  request.style = style;
  request.nodes = 2;
  request.gpus_per_node = "a100:4";
  request.cpus_per_task = 8;
  request.mem = "64G";
  request.time = "1:00:00";
  request.partition = "gpu";
  request.account = "nn1234k";
  request.array = "0-9%2";
  request.signal = "USR1@120";
  request.requeue = true;
  request.modules = {"gcc/12", "cuda/13"};
  request.version = SlurmVersion{22, 5};
  return request;
}

std::vector<std::string> directives(const std::string& script) {
  std::vector<std::string> found;
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("#SBATCH ", 0) == 0) found.push_back(line.substr(8));
  }
  return found;
}

TEST(SbatchScriptTest, AllStylesAskForTheSameAllocation) {
  for (const SlurmStyle style : kStyles) {
    EXPECT_THAT(
        directives(sbatch_script(full_request(style))),
        testing::ElementsAre("--job-name=sine", "--partition=gpu", "--account=nn1234k", "--array=0-9%2",
                             "--output=%x-%A_%a.out", "--open-mode=append", "--nodes=2",
                             "--ntasks-per-node=4", "--gpus-per-node=a100:4", "--cpus-per-task=8",
                             "--mem=64G", "--time=1:00:00", "--signal=USR1@120", "--requeue"));
  }
}

TEST(SbatchScriptTest, TheLeastRequest) {
  EXPECT_THAT(directives(sbatch_script({.command = {"/opt/my program"}})),
              testing::ElementsAre("--job-name=\"my program\"", "--output=%x-%j.out", "--open-mode=append",
                                   "--nodes=1", "--ntasks-per-node=1"));
}

TEST(SbatchScriptTest, DirectivesStandBeforeTheFirstCommand) {
  // sbatch stops reading them there.
  bool command_seen = false;
  std::istringstream lines(sbatch_script(full_request(SlurmStyle::kSpawn)));
  for (std::string line; std::getline(lines, line);) {
    const bool is_directive = line.rfind("#SBATCH", 0) == 0;
    EXPECT_FALSE(command_seen && is_directive) << line;
    command_seen = command_seen || (!line.empty() && line.front() != '#');
  }
}

TEST(SbatchScriptTest, EachStyleStartsInItsWay) {
  const std::string torchrun = sbatch_script(full_request(SlurmStyle::kTorchrun));
  EXPECT_THAT(torchrun,
              HasSubstr("lockstep run --nproc-per-node=\"$SLURM_NTASKS_PER_NODE\" ./sine --lr 0.1\n"));
  EXPECT_THAT(torchrun, HasSubstr("--ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1"));
  const std::string srun = sbatch_script(full_request(SlurmStyle::kSrun));
  EXPECT_THAT(
      srun,
      HasSubstr("srun --kill-on-bad-exit=1 --wait=0 ${gpu_bind:+\"$gpu_bind\"} \\\n  ./sine --lr 0.1\n"));
  const std::string spawn = sbatch_script(full_request(SlurmStyle::kSpawn));
  EXPECT_THAT(spawn,
              HasSubstr("export LOCKSTEP_NPROCS=\"$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))\"\n"));
  EXPECT_THAT(
      spawn,
      HasSubstr("--cpus-per-task=\"$((${SLURM_CPUS_PER_TASK:-1} * SLURM_NTASKS_PER_NODE))\" \\\n  ./sine"));
}

// In the environment, which other users cannot read; they can read a command line.
TEST(SbatchScriptTest, JobsGetASecretThatNoCommandLineShows) {
  for (const SlurmStyle style : kStyles) {
    const std::string script = sbatch_script(full_request(style));
    EXPECT_THAT(script, HasSubstr("\nexport LOCKSTEP_JOB_TOKEN\n"));
    EXPECT_THAT(script.substr(script.find("\nsrun ")), Not(HasSubstr("TOKEN")));
  }
}

TEST(SbatchScriptTest, TellsSrunWhatItForgets) {
  const auto text = [](std::optional<SlurmVersion> version) {
    SbatchRequest request = full_request(SlurmStyle::kSrun);
    request.version = version;
    return sbatch_script(request);
  };
  const auto tells = HasSubstr("export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n");
  EXPECT_THAT(text(SlurmVersion{21, 8}), Not(tells));
  EXPECT_THAT(text(SlurmVersion{22, 5}), tells);
  EXPECT_THAT(text(SlurmVersion{23, 2}), tells);
  EXPECT_THAT(text(SlurmVersion{23, 11}), Not(tells));
  EXPECT_THAT(text(std::nullopt), tells) << "not known: the text that is right everywhere";
}

TEST(SbatchScriptTest, OldSlurmKnowsGpusAsGres) {
  SbatchRequest request = full_request(SlurmStyle::kSrun);
  request.version = SlurmVersion{18, 8};
  const std::string script = sbatch_script(request);
  EXPECT_THAT(script, HasSubstr("#SBATCH --gres=gpu:a100:4\n"));
  EXPECT_THAT(script, Not(HasSubstr("--gpu-bind")));
}

TEST(SbatchScriptTest, QueuesAgainOnlyWhereAsked) {
  EXPECT_THAT(sbatch_script(full_request(SlurmStyle::kSrun)), HasSubstr("if [ \"$status\" -eq 75 ]; then"));
  EXPECT_THAT(sbatch_script({.command = {"x"}}), Not(HasSubstr("requeue")));
}

std::string words_given_to_srun(const std::string& script, const std::string& variables = "");

TEST(SbatchScriptTest, MailErrorsAndNodesAreDirectives) {
  SbatchRequest request{.command = {"x"}, .nodes = 2, .gpus = "a100:4"};
  request.error = "log %j.err";
  request.mail_type = "begin,end";
  request.mail_user = "me@example.org";
  request.exclusive = true;
  request.hint = "nomultithread";
  request.sbatch_options = {"--reservation=tutorial", "no-kill", "comment=my \"run\""};
  const std::string script = sbatch_script(request);
  EXPECT_THAT(directives(script),
              testing::ElementsAre("--job-name=x", "--output=%x-%j.out", "--error=\"log %j.err\"",
                                   "--open-mode=append", "--mail-type=begin,end",
                                   "--mail-user=me@example.org", "--nodes=2", "--ntasks-per-node=2",
                                   "--gpus=a100:4", "--exclusive", "--hint=nomultithread",
                                   "--reservation=tutorial", "--no-kill", "--comment=\"my \\\"run\\\"\""));
  request.version = SlurmVersion{18, 8};
  EXPECT_THAT(sbatch_script(request), HasSubstr("#SBATCH --gres=gpu:a100:2\n"));
  request.gres = "nvme:1";
  EXPECT_THAT(sbatch_script(request), HasSubstr("#SBATCH --gres=gpu:a100:2,nvme:1\n"));
  request.version = std::nullopt;
  EXPECT_THAT(sbatch_script(request), HasSubstr("#SBATCH --gres=nvme:1\n#SBATCH --gpus=a100:4\n"));
  request.gpus.clear();
  request.gres = "gpu:2";
  EXPECT_THAT(sbatch_script(request), HasSubstr("#SBATCH --ntasks-per-node=2\n#SBATCH --gres=gpu:2\n"));
}

TEST(SbatchScriptTest, ModulesAreUnloadedBeforeOthersAreLoaded) {
  SbatchRequest request{.command = {"x"}};
  request.module_purge = true;
  EXPECT_THAT(sbatch_script(request), testing::StartsWith("#!/bin/bash -l\n"));
  request.modules = {"anaconda3/2021.5"};
  request.conda = "torch env";
  EXPECT_THAT(sbatch_script(request), HasSubstr("\nmodule purge\nmodule load anaconda3/2021.5 || exit\n"));
  EXPECT_THAT(sbatch_script(request), HasSubstr("\nconda activate 'torch env' || exit\n"));
}

TEST(SbatchScriptTest, CpuBindingIsGivenToSrun) {
  EXPECT_THAT(words_given_to_srun(sbatch_script(
                  {.command = {"x"}, .style = SlurmStyle::kSrun, .cpu_bind = "mask_cpu:fe,fe00"})),
              HasSubstr("<--cpu-bind=mask_cpu:fe,fe00>\n"));
}

// The shell in the container runs for real, with a folder that has a bin/activate.
TEST(SbatchScriptTest, AnEnvironmentInAContainerIsActivatedThere) {
  const test::TemporaryFolder folder;
  const std::string venv = folder.path() / "my env";
  std::filesystem::create_directories(venv + "/bin");
  std::ofstream(venv + "/bin/activate") << "echo activated\n";
  SbatchRequest request{.command = {"echo", "program", "a b"}, .gpus_per_node = "8"};
  request.style = SlurmStyle::kSrun;
  request.container = "a.sif";
  request.binds = {"/scratch:/my data:ro", "/project"};
  request.venv = venv;
  const std::string runtime = "\nsingularity() { :; }";
  const std::string words = words_given_to_srun(sbatch_script(request), runtime);
  EXPECT_THAT(words,
              HasSubstr("<exec>\n<--nv>\n<--bind=/scratch:/my data:ro>\n<--bind=/project>\n<a.sif>\n<bash>\n"
                        "<-c>\n"));
  EXPECT_THAT(words, testing::EndsWith("<" + venv + ">\n<echo>\n<program>\n<a b>\n"));
  const std::string srun = "\nsrun() { while [ \"$1\" != a.sif ]; do shift; done; shift; \"$@\"; }";
  EXPECT_THAT(words_given_to_srun(sbatch_script(request), runtime + srun),
              testing::EndsWith("\nactivated\nprogram a b\n"));
  EXPECT_THAT(
      words_given_to_srun(sbatch_script(request), runtime + srun + "\nexport WITH_CONDA='echo with conda'"),
      testing::EndsWith("\nwith conda\nactivated\nprogram a b\n"));

  request.container.clear();
  request.binds.clear();
  EXPECT_THAT(words_given_to_srun(sbatch_script(request)), HasSubstr("activated\n"));
}

TEST(SbatchScriptTest, ContainerHoldsTheProgramOnly) {
  SbatchRequest request = full_request(SlurmStyle::kTorchrun);
  request.container = "my image.sif";
  EXPECT_THAT(sbatch_script(request),
              HasSubstr("\" \"$runtime\" exec --nv 'my image.sif' ./sine --lr 0.1\n"));
  request.gpus_per_node = "";
  EXPECT_THAT(sbatch_script(request), HasSubstr(" exec 'my image.sif' ./sine"));
}

TEST(SbatchScriptTest, AmdGpusComeIntoTheContainerWithRocm) {
  SbatchRequest request = full_request(SlurmStyle::kSrun);
  request.gpus_per_node = "mi250:8";
  request.gpu_vendor = GpuVendor::kAmd;
  request.container = "image.sif";
  const std::string script = sbatch_script(request);
  EXPECT_THAT(script, HasSubstr("  \"$runtime\" exec --rocm image.sif ./sine --lr 0.1\n"));
  EXPECT_THAT(script, HasSubstr("this also unsets ROCR_VISIBLE_DEVICES"));
  EXPECT_THAT(script, Not(HasSubstr("--nv")));
  EXPECT_THAT(script, Not(HasSubstr("CUDA")));
  request.gpu_vendor = GpuVendor::kNvidia;
  EXPECT_THAT(sbatch_script(request), HasSubstr("exec --nv image.sif"));
}

TEST(SbatchScriptTest, TurnsOffGpuBindingWhereSomethingBinds) {
  const std::string script = sbatch_script({.command = {"x"}, .gpus_per_node = "4"});
  EXPECT_THAT(words_given_to_srun(script), Not(HasSubstr("gpu-bind")));
  EXPECT_THAT(words_given_to_srun(script, "SLURM_GPU_BIND=single:1"), HasSubstr("<--gpu-bind=none>\n"));
  EXPECT_THAT(words_given_to_srun(script, "SLURM_GPUS_PER_TASK=1"), HasSubstr("<--gpu-bind=none>\n"));
}

// Runs the script under bash with an srun that prints its words, one per line.
std::string words_given_to_srun(const std::string& script, const std::string& variables) {
  base::ProcessOptions options;
  options.program = "/bin/bash";
  options.arguments = {"bash", "-c",
                       "srun() { for word in \"$@\"; do printf '<%s>\\n' \"$word\"; done; }\n"
                       "SLURM_JOB_NUM_NODES=2 SLURM_NTASKS_PER_NODE=4 SLURM_CPUS_PER_TASK=8 SLURM_JOB_ID=7 " +
                           variables + "\n" + script};
  options.environment = base::Environment{{"PATH", "/usr/bin:/bin"}};
  const auto result = base::run_program(options, std::chrono::minutes(1));
  EXPECT_TRUE(result && result->state.success());
  EXPECT_EQ(result->errors, "");
  return result->output;
}

TEST(SbatchScriptTest, ValuesStayData) {
  const std::vector<std::string> nasty{"$HOME", "$(echo x)",   "`echo x`",
                                       "a\nb",  "it's \"so\"", "\\",
                                       "",      "# no",        "gr\u00fc\u00df \u4e16\u754c",
                                       "*",     ";exit 1",     "\n#SBATCH --nodes=99",
                                       "-n"};
  for (const SlurmStyle style : kStyles) {
    SbatchRequest request{.command = {"./a program's\nname"}, .style = style};
    request.command.insert(request.command.end(), nasty.begin(), nasty.end());
    request.launcher = "/opt/my tools/lockstep";
    request.job_name = "$(echo x) `echo x` \"'\\";
    std::string expected = "<" + request.command.front() + ">\n";
    for (const std::string& word : nasty) expected += "<" + word + ">\n";
    EXPECT_THAT(words_given_to_srun(sbatch_script(request)), testing::EndsWith(expected));
  }
}

TEST(SbatchScriptTest, CountsComeFromSlurm) {
  const std::string words =
      words_given_to_srun(sbatch_script({.command = {"x"}, .nodes = 3, .cpus_per_task = 5}));
  EXPECT_THAT(words, HasSubstr("<--ntasks=2>\n<--ntasks-per-node=1>\n<--cpus-per-task=32>\n"));
  EXPECT_THAT(words, HasSubstr("<--nproc-per-node=4>\n"));
}

TEST(SbatchScriptTest, RefusesWhatADirectiveCannotHold) {
  EXPECT_THROW(sbatch_script({.command = {"x"}, .job_name = "a\n#SBATCH --nodes=99"}), ConfigError);
  EXPECT_THROW(sbatch_script({.command = {"x"}, .output = "a\nb"}), ConfigError);
  EXPECT_THAT(sbatch_script({.command = {"a\nb"}}), HasSubstr("--job-name=lockstep\n"));
}

}  // namespace
}  // namespace lockstep::launcher
