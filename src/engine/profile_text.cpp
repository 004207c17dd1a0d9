#include "engine/profile_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

namespace lockstep::engine {
namespace {

using ProfilePart = ModelProfile::Part;

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

std::string time_text(double time_s) {
  if (time_s >= 1) return fmt::format("{:.2f} s", time_s);
  if (time_s >= 1e-3) return fmt::format("{:.2f} ms", time_s * 1e3);
  return fmt::format("{:.2f} us", time_s * 1e6);
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string plain_text(double count) { return count_text(count, ""); }
std::string macs_text(double macs) { return count_text(macs, "MACs"); }
std::string rate_text(double flops, double time_s) { return count_text(ratio(flops, time_s), "FLOPS"); }

void add_line(std::string& page, std::string_view what, const std::string& value) {
  fmt::format_to(std::back_inserter(page), "{:<70}  {}\n", fmt::format("{}:", what), value);
}

std::string summary(const ProfiledStep& step, const ProfilePart& model, double recompute) {
  // A forward of a micro batch; the others are like it.
  const auto micro_batches = static_cast<double>(step.batch.accumulation_steps);
  const double flops = static_cast<double>(model.cost.flops) / micro_batches;
  const double forward = seconds(step.forward) / micro_batches;
  const double backward = seconds(step.backward) / micro_batches;
  const double all = seconds(step.forward + step.backward + step.update);
  const double backward_factor = 2 + recompute;
  std::string page;
  add_line(page, "world size", std::to_string(step.ranks));
  add_line(page, "batch size per rank", std::to_string(step.batch.micro_batch_size));
  add_line(page, "micro batches of a step", std::to_string(step.batch.accumulation_steps));
  add_line(page, "params of model", plain_text(static_cast<double>(model.parameters)));
  add_line(page, "fwd MACs per rank", macs_text(static_cast<double>(model.cost.macs) / micro_batches));
  add_line(page, "fwd flops per rank", plain_text(flops));
  add_line(page, "fwd latency", time_text(forward));
  add_line(page, "fwd FLOPS per rank = fwd flops / fwd latency", rate_text(flops, forward));
  add_line(page, "bwd latency", time_text(backward));
  add_line(page, fmt::format("bwd FLOPS per rank = {:g} * fwd flops / bwd latency", backward_factor),
           rate_text(backward_factor * flops, backward));
  add_line(page,
           fmt::format("fwd+bwd FLOPS per rank = {:g} * fwd flops / (fwd+bwd latency)", backward_factor + 1),
           rate_text((backward_factor + 1) * flops, forward + backward));
  add_line(page, "step latency", time_text(seconds(step.update)));
  add_line(page, "iter latency = micro batches * (fwd+bwd latency) + step latency", time_text(all));
  add_line(
      page,
      fmt::format("FLOPS per rank = micro batches * {:g} * fwd flops / iter latency", backward_factor + 1),
      rate_text(micro_batches * (backward_factor + 1) * flops, all));
  add_line(page, "samples/second",
           fmt::format("{:.2f}", ratio(static_cast<double>(step.batch.train_batch_size), all)));
  return page;
}

// All modules of one type at one depth.
struct TypeTotal {
  std::string type;
  double parameters = 0;
  double macs = 0;
  double time_s = 0;
};

std::vector<TypeTotal> totals_at(const std::vector<ProfilePart>& parts, int depth, double micro_batches) {
  std::map<std::string, TypeTotal> totals;
  for (const ProfilePart& part : parts) {
    if (part.depth != depth) continue;
    TypeTotal& total = totals[part.type];
    total.type = part.type;
    total.parameters += static_cast<double>(part.parameters);
    total.macs += static_cast<double>(part.cost.macs) / micro_batches;
    total.time_s += seconds(part.time) / micro_batches;
  }
  std::vector<TypeTotal> list;
  for (auto& [type, total] : totals) list.push_back(std::move(total));
  return list;
}

template <typename Text>
std::string top(std::vector<TypeTotal> totals, double TypeTotal::*by, int64_t count, Text text) {
  std::stable_sort(totals.begin(), totals.end(),
                   [by](const TypeTotal& a, const TypeTotal& b) { return a.*by > b.*by; });
  std::vector<std::string> shown;
  for (size_t i = 0; i < totals.size() && i < static_cast<size_t>(count); ++i) {
    shown.push_back(fmt::format("{} {}", totals[i].type, text(totals[i].*by)));
  }
  return fmt::format("{}", fmt::join(shown, ", "));
}

std::string top_modules(const std::vector<ProfilePart>& parts, const DeepSpeedConfig::FlopsProfiler& options,
                        double micro_batches) {
  const auto deepest =
      std::max_element(parts.begin(), parts.end(),
                       [](const ProfilePart& a, const ProfilePart& b) { return a.depth < b.depth; });
  const int64_t last =
      options.module_depth < 0 ? deepest->depth : std::min<int64_t>(options.module_depth, deepest->depth);
  std::string page;
  for (int depth = 0; depth <= last; ++depth) {
    const std::vector<TypeTotal> totals = totals_at(parts, depth, micro_batches);
    fmt::format_to(std::back_inserter(page),
                   "depth {}:\n    params      - {}\n    MACs        - {}\n    fwd latency - {}\n", depth,
                   top(totals, &TypeTotal::parameters, options.top_modules, plain_text),
                   top(totals, &TypeTotal::macs, options.top_modules, macs_text),
                   top(totals, &TypeTotal::time_s, options.top_modules, time_text));
  }
  return page;
}

std::string tree(const ModelProfile& profile, double micro_batches) {
  const ProfilePart& model = profile.model();
  const auto percent = [](double part, double whole) {
    return fmt::format("{:.2f}%", 100 * ratio(part, whole));
  };
  std::string page;
  for (const ProfilePart& part : profile.parts()) {
    const std::string last = part.name.substr(part.name.rfind('.') + 1);
    const auto macs = static_cast<double>(part.cost.macs);
    const double time_s = seconds(part.time);
    fmt::format_to(std::back_inserter(page), "{:{}}{}{}: {} = {} Params, {} = {} MACs, {} = {} latency, {}\n",
                   "", 2 * part.depth, last.empty() ? "" : fmt::format("({}) ", last), part.type,
                   plain_text(static_cast<double>(part.parameters)),
                   percent(static_cast<double>(part.parameters), static_cast<double>(model.parameters)),
                   macs_text(macs / micro_batches), percent(macs, static_cast<double>(model.cost.macs)),
                   time_text(time_s / micro_batches), percent(time_s, seconds(model.time)),
                   rate_text(static_cast<double>(part.cost.flops), time_s));
  }
  return page;
}

}  // namespace

std::string count_text(double count, std::string_view unit) {
  constexpr std::array<std::pair<double, char>, 4> kPrefixes = {
      {{1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'K'}}};
  for (const auto& [size, prefix] : kPrefixes) {
    if (count >= size) return fmt::format("{:.2f} {}{}", count / size, prefix, unit);
  }
  return fmt::format("{:g}{}{}", count, unit.empty() ? "" : " ", unit);
}

std::string profile_text(const ProfiledStep& step, const ModelProfile& profile,
                         const DeepSpeedConfig::FlopsProfiler& options) {
  const auto micro_batches = static_cast<double>(step.batch.accumulation_steps);
  std::string page = fmt::format(
      "-------------------------- Flops Profiler --------------------------\n"
      "Step {}, counted from 0; one micro batch of one rank. MACs: multiply-accumulates; flops:\n"
      "floating-point operations; FLOPS: flops a second; latency: time.\n\n",
      step.step);
  page += summary(step, profile.model(), options.recompute_fwd_factor);
  page += fmt::format(
      "\n-------------------------- Modules --------------------------\n"
      "The {} that cost most at each depth:\n",
      options.top_modules);
  page += top_modules(profile.parts(), options, micro_batches);
  if (!options.detailed) return page;
  page +=
      "\n-------------------------- Tree --------------------------\n"
      "An operation counts for the module whose parameter it uses, and for those around it; one that\n"
      "uses none for the model alone. Latency is that of the counted operations.\n";
  return page + tree(profile, micro_batches);
}

}  // namespace lockstep::engine
