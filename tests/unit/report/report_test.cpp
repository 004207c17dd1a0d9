#include "report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>

#include "report/chart.h"
#include "report/escape.h"
#include "report/page.h"
#include "report/svg_plot.h"
#include "support/config_error.h"
#include "support/fuzz.h"
#include "unit/report/run_files.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using test::RunFiles;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string page_of(const std::vector<std::filesystem::path>& folders) {
  test::TemporaryFolder output;
  write_report(folders, output.path() / "report.html");
  return read_text(output.path() / "report.html");
}

// What the page's script reads.
json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at));
}

std::vector<std::string> labels_of(const json& chart) {
  std::vector<std::string> labels;
  for (const json& series : chart["series"]) labels.push_back(series["label"]);
  return labels;
}

constexpr char kMetrics[] =
    "step,epoch,train_loss,val_loss,train_accuracy,learning_rate,samples_per_s,time_data_s,time_forward_s,"
    "grad_norm\n"
    "5,1,0.5,0.6,0.1,0.01,100,0.1,0.2,3\n10,2,0.25,0.3,0.2,0.01,120,0.1,0.2,2\n";

TEST(ReportTest, APageHasChartsSummaryConfigurationAndNoAddress) {
  RunFiles files;
  files.write("metrics.csv", kMetrics)
      .write("config.json", "{\"seed\": 3, \"max_iter\": 2}")
      .write("config_defaults.json", "{\"seed\": 0, \"max_iter\": 2}");
  const std::string page = page_of({files.path()});
  const json charts = data_of(page)["charts"];
  std::vector<std::string> ids;
  for (const json& chart : charts) ids.push_back(chart["id"]);
  EXPECT_THAT(ids,
              ElementsAre("loss", "accuracy", "learning-rate", "samples-per-s", "step-time", "grad-norm"));
  EXPECT_THAT(labels_of(charts[0]), ElementsAre("training", "validation"));
  EXPECT_EQ(charts[4]["kind"], "stack");
  EXPECT_EQ(charts[4]["series"][0]["y"], (json{20, 20})) << "milliseconds a step";
  EXPECT_THAT(page, HasSubstr("<tr><th>seed</th><td><code>3</code></td><td class=\"usual\"><code>0</code>"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  // Nothing is loaded: the only addresses are words of Chart.js and of SVG.
  for (const char* loader : {"src=", "href=", "@import", "url("}) {
    EXPECT_THAT(page.substr(0, page.find("<script>")), Not(HasSubstr(loader)));
  }
  EXPECT_THAT(page, HasSubstr("Released under the MIT License")) << "Chart.js comes with its licence";
}

// The configuration before the table of all options.
std::string changed_options(const std::string& page) {
  const size_t begin = page.find("<h2>Configuration");
  return page.substr(begin, page.find("All options") - begin);
}

TEST(ReportTest, AHyperparameterThatDiffersIsARowOfItsOwn) {
  RunFiles a("a");
  RunFiles b("b");
  const std::string defaults = R"({"seed": 0, "hyperparams": {"lr": 0.1, "width": 16}})";
  a.write("metrics.csv", kMetrics)
      .write("config.json", R"({"seed": 0, "hyperparams": {"lr": 0.3, "width": 16, "net": "cnn"}})")
      .write("config_defaults.json", defaults);
  b.write("metrics.csv", kMetrics)
      .write("config.json", R"({"seed": 0, "hyperparams": {"lr": 0.5, "width": 16, "net": "cnn"}})")
      .write("config_defaults.json", defaults);
  const std::string one = changed_options(page_of({a.path()}));
  EXPECT_THAT(one, HasSubstr("<tr><th>hyperparams.lr</th><td><code>0.3</code></td>"
                             "<td class=\"usual\"><code>0.1</code></td></tr>"));
  EXPECT_THAT(one, HasSubstr("<tr><th>hyperparams.net</th><td><code>cnn</code></td>"))
      << "the defaults lack it";
  EXPECT_THAT(one, Not(HasSubstr("width")));
  const std::string both = changed_options(page_of({a.path(), b.path()}));
  EXPECT_THAT(both, HasSubstr("<tr><th>hyperparams.lr</th><td><code>0.3</code></td><td><code>0.5</code>"
                              "</td><td class=\"usual\"><code>0.1</code></td></tr>"));
  EXPECT_THAT(both, Not(HasSubstr("hyperparams.net")));
  EXPECT_THAT(both, Not(HasSubstr("width")));
}

// Before its first epoch is over, and after it: a curve, not a dot.
TEST(ReportTest, RowsOfStepsAreAThinCurveBehindTheMeans) {
  RunFiles files;
  const std::string header = "step,step_loss,samples_per_s,epoch,train_loss\n";
  files.write("metrics.csv", header + "1,0.9,10,,\n2,0.7,11,,\n");
  EXPECT_THAT(labels_of(data_of(page_of({files.path()}))["charts"][0]), ElementsAre("training steps"));
  files.write("metrics.csv", header + "1,0.9,10,,\n2,0.7,11,,\n4,0.5,12,1,0.75\n6,0.4,13,,\n");
  const json data = data_of(page_of({files.path()}));
  const json& loss = data["charts"][0];
  EXPECT_THAT(labels_of(loss), ElementsAre("training", "training steps"));
  EXPECT_EQ(loss["series"][1]["y"], (json{0.9, 0.7, 0.5, 0.4}));
  EXPECT_EQ(loss["series"][1]["thin"], true);
  EXPECT_EQ(loss["series"][0]["thin"], false);
  EXPECT_EQ(data["charts"][1]["series"][0]["y"].size(), 4u) << "samples/s by step";
  // Steps 0, 4 and 6: the second epoch is half done.
  EXPECT_EQ(data["runs"][0]["epochs"], (json{{0, 4, 6}, {0, 1, 1.5}}));
}

TEST(ReportTest, SeveralRunsShareTheCharts) {
  RunFiles a("a");
  RunFiles b("b");
  a.write("metrics.csv", kMetrics).write("config.json", "{\"seed\": 1, \"dtype\": \"float32\"}");
  b.write("metrics.csv", kMetrics)
      .write("config.json", "{\"seed\": 2, \"dtype\": \"float32\", \"extra\": 1}");
  const std::string page = page_of({a.path(), b.path()});
  const json charts = data_of(page)["charts"];
  EXPECT_THAT(labels_of(charts[0]),
              ElementsAre("a, training", "a, validation", "b, training", "b, validation"));
  EXPECT_EQ(charts[0]["series"][0]["colour"], charts[0]["series"][1]["colour"]);
  EXPECT_NE(charts[0]["series"][0]["colour"], charts[0]["series"][2]["colour"]);
  EXPECT_EQ(charts[4]["kind"], "bars");
  EXPECT_EQ(charts[4]["categories"], (json{"a", "b"}));
  const std::string differs =
      page.substr(page.find("what differs"), page.find("All options") - page.find("what differs"));
  EXPECT_THAT(differs, HasSubstr("<tr><th>seed</th><td><code>1</code></td><td><code>2</code></td>"));
  EXPECT_THAT(differs, HasSubstr("<tr><th>extra</th><td class=\"none\">"));
  EXPECT_THAT(differs, Not(HasSubstr("dtype")));
}

TEST(ReportTest, RunsOfOneNameAreToldApart) {
  RunFiles parent("x");
  for (const char* name : {"first", "second"}) {
    std::filesystem::create_directories(parent.path() / name / "run");
    std::ofstream(parent.path() / name / "run/metrics.csv") << kMetrics;
  }
  EXPECT_EQ(data_of(page_of(
                {parent.path() / "first/run", parent.path() / "second/run"}))["charts"][4]["categories"],
            (json{"first/run", "second/run"}));
}

// Every place that takes text from outside.
TEST(ReportTest, HostileNamesStayText) {
  const std::string hostile = "</script><script>alert('x')</script>\"&\xff";
  RunFiles files("<script>alert(1)<\\script>'\"\xfe");
  const std::string quoted = json(hostile).dump(-1, ' ', false, json::error_handler_t::replace);
  files.write("metrics.csv", "step,train_loss,\"</script><script>alert('x')</script>\"\n1,0.5,1\n2,0.25,2\n")
      .write("metrics.jsonl", "{\"step\":0,\"time\":1.0,\"text\":\"model\",\"content\":" + quoted + "}\n")
      .write("config.json", "{" + quoted + ": " + quoted + "}")
      .write("ranks.json", "{\"backend\": " + quoted + ", \"ranks\": [{\"host\": " + quoted +
                               ", \"device\": " + quoted + "}]}")
      .write("gpu.csv", "timestamp,index,utilization.gpu\n1,</script><script>alert('x')</script>,5\n2,0,5\n");
  const std::string page = page_of({files.path()});
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
  EXPECT_THAT(page, Not(HasSubstr("\xfe")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert"));
  size_t scripts = 0;
  for (size_t at = page.find("</script>"); at != std::string::npos; at = page.find("</script>", at + 1))
    ++scripts;
  EXPECT_EQ(scripts, 3u) << "data, Chart.js and the page's own";
}

TEST(ReportTest, AssetsDoNotEndTheirElements) {
  EXPECT_EQ(chart_js().find("</script"), std::string_view::npos);
  EXPECT_EQ(page_script().find("</script"), std::string_view::npos);
  EXPECT_EQ(page_style().find("</style"), std::string_view::npos);
  EXPECT_THAT(std::string(chart_js()), HasSubstr("Chart.js v"));
}

TEST(ReportTest, ALongRunIsThinnedAndThePageSaysSo) {
  RunFiles files;
  std::ofstream rows(files.path() / "metrics.csv");
  rows << "step,epoch,train_loss\n";
  for (int i = 1; i <= 200'000; ++i) rows << i << "," << i << "," << 1.0 / i << "\n";
  rows.close();
  const std::string page = page_of({files.path()});
  EXPECT_THAT(page, HasSubstr("200000 rows are shown thinned"));
  EXPECT_LT(page.size(), chart_js().size() + 300'000);
}

TEST(ReportTest, ManyMetricsAreBounded) {
  RunFiles files;
  std::string header = "step";
  std::string row = "1";
  for (int i = 0; i < 100; ++i) {
    header += ",grad_norm/layer" + std::to_string(i);
    row += ",1";
  }
  files.write("metrics.csv", header + "\n" + row + "\n");
  const std::string page = page_of({files.path()});
  EXPECT_THAT(data_of(page)["charts"], SizeIs(kMaxOtherCharts));
  EXPECT_THAT(page, HasSubstr("76 of 100 further metrics have no chart"));
}

TEST(ReportTest, GpusHaveChartsWhereTheyWereWatched) {
  RunFiles files;
  files.write("metrics.csv", kMetrics)
      .write("gpu.csv",
             "timestamp,index,name,utilization.gpu,memory.total,memory.used\n1,0,A,50,1024,512\n"
             "1,1,A,60,1024,512\n2,0,A,70,1024,512\n2,1,A,80,1024,512\n");
  const json data = data_of(page_of({files.path()}));
  for (const json& chart : data["charts"]) {
    if (chart["id"] != "gpu-utilization") continue;
    EXPECT_THAT(labels_of(chart), ElementsAre("GPU 0", "GPU 1"));
    EXPECT_EQ(chart["series"][1]["y"], (json{60, 80}));
    return;
  }
  FAIL() << "no chart of the GPUs";
}

TEST(ReportTest, ARunWithoutMetricsStillHasAPage) {
  RunFiles files;
  files.write("config.json", "{\"seed\": 1}");
  const std::string page = page_of({files.path()});
  EXPECT_THAT(page, HasSubstr("there are no metrics"));
  EXPECT_THAT(page, HasSubstr("<th>seed</th>"));
}

TEST(ReportTest, WhatCannotBeWrittenIsAnError) {
  RunFiles files;
  files.write("metrics.csv", kMetrics);
  EXPECT_THAT(test::error_of([&] { write_report({files.path()}, files.path() / "no/such/folder/x.html"); }),
              HasSubstr("no/such/folder/x.html"));
  EXPECT_THAT(test::error_of([&] { write_svgs({files.path()}, files.path() / "metrics.csv"); }),
              HasSubstr("metrics.csv"));
  EXPECT_THAT(test::error_of([] { write_report({}, "x.html"); }), HasSubstr("no run is given"));
}

TEST(ReportTest, PicturesShowEpochs) {
  RunFiles files;
  files.write("metrics.csv", kMetrics);
  const auto paths = write_svgs({files.path()}, files.path() / "svg");
  ASSERT_THAT(paths, SizeIs(6));
  EXPECT_EQ(paths[0], files.path() / "svg/loss.svg");
  EXPECT_THAT(read_text(paths[0]), HasSubstr(">epoch</text>"));
}

// Whatever the files hold, there is a page, and the data in it can be read. In memory: a
// disk takes a minute for files that are written again and again.
TEST(ReportFuzzTest, BrokenFilesNeverStopAPage) {
  constexpr int kPerFile = 200;
  const std::vector<test::FuzzFile> corpus = test::fuzz_corpus("report");
  RunFiles files("run", "/dev/shm");
  size_t pages = 0;
  test::for_each_mutation(corpus, kPerFile, "nan,\"{}[]:,\n\r0123456789-e.inf", 20261115,
                          [&](const std::string& bytes) {
                            for (const test::FuzzFile& file : corpus) files.write(file.name, file.bytes);
                            files.write(corpus[pages++ / kPerFile].name, bytes);
                            const std::vector<report::Run> runs = {read_run(files.path())};
                            EXPECT_TRUE(data_of(run_page(runs)).is_object()) << bytes;
                            std::vector<std::string> remarks;
                            for (const Chart& chart : charts_of(runs, remarks))
                              EXPECT_THAT(plot_svg(chart), HasSubstr("</svg>"));
                          });
  EXPECT_EQ(pages, corpus.size() * kPerFile);
}

TEST(EscapeTest, MarkupEndsNoTagAndNoAttribute) {
  EXPECT_EQ(escape_markup("</script><b a=\"x\" c='y'>&amp;"),
            "&lt;/script&gt;&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(escape_markup("a\nb\tc é"), "a\nb\tc é");
}

TEST(EscapeTest, WhatIsNoTextIsReplaced) {
  EXPECT_EQ(escape_markup(std::string("a\0b\x01\x7f", 5)), "a\uFFFDb\uFFFD\uFFFD");
  EXPECT_EQ(escape_markup("\xff\xfe"), "\uFFFD\uFFFD");
  EXPECT_THAT(escape_markup("caf\xe9 au lait"), HasSubstr("au lait"));
}

TEST(EscapeTest, ScriptsDoNotEndAndMeanTheSame) {
  const Json value = {{"name", "</script><!-- <script> &"}};
  const std::string text = escape_script(value);
  EXPECT_THAT(text, Not(HasSubstr("<")));
  EXPECT_EQ(Json::parse(text), value);
  EXPECT_TRUE(Json::try_parse(escape_script({{"x", "\xff"}})));
}

}  // namespace
}  // namespace lockstep::report
