#include "report/step_times.h"

#include <lockstep/json.h>
#include <system_error>

#include "report/line_reader.h"

namespace lockstep::report {
namespace {

constexpr uint64_t kPlaces = 400;
constexpr uint64_t kTailBytes = 64 << 10;
constexpr int kHeadLines = 16;

void add_line(const std::string& line, StepTimes& result) {
  const Json object = Json::try_parse(line).value_or(nullptr);
  if (!object.is_object() || !object.contains("step") || !object.contains("time")) return;
  const Json& step = object["step"];
  const Json& time = object["time"];
  if (!step.is_number() || !time.is_number()) return;
  const Point point{step.get<double>(), time.get<double>()};
  if (result.times.empty() || (point.x > result.times.back().x && point.y >= result.times.back().y)) {
    result.times.push_back(point);
  }
  if (object.value("text", Json()) == "model" && object.contains("content") &&
      object["content"].is_string()) {
    result.model = object["content"].get<std::string>();
  }
}

}  // namespace

StepTimes sample_step_times(const std::filesystem::path& path) {
  StepTimes result;
  LineReader lines(path);
  std::error_code error;
  const uint64_t size = lines.is_open() ? std::filesystem::file_size(path, error) : 0;
  if (error || size == 0) return result;
  std::string line;
  for (int i = 0; i < kHeadLines && lines.next(line); ++i) add_line(line, result);
  for (uint64_t place = 1; place < kPlaces; ++place) {
    lines.seek(size / kPlaces * place);
    if (lines.next(line)) add_line(line, result);
  }
  lines.seek(size > kTailBytes ? size - kTailBytes : 0);
  while (lines.next(line)) add_line(line, result);
  return result;
}

}  // namespace lockstep::report
