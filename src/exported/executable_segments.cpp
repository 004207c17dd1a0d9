#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/sharded.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exported/executable.h"

// The segments of an executable: the calls of modules that are units of sharding, or that compute their
// activations again.

namespace lockstep::exported {
namespace {

// Operators whose schema does not say that they may return an argument, or a view of it.
bool returns_argument(const std::string& name) {
  static const std::set<std::string> kNames = {"aten::dropout",
                                               "aten::feature_dropout",
                                               "aten::alpha_dropout",
                                               "aten::feature_alpha_dropout",
                                               "aten::type_as",
                                               "aten::meshgrid",
                                               "aten::broadcast_tensors",
                                               "aten::atleast_1d",
                                               "aten::atleast_2d",
                                               "aten::atleast_3d",
                                               "aten::einsum"};
  return kNames.count(name) != 0;
}

}  // namespace

// --- construction ---

// `depth`: the cuts of these nodes that have their segments already.
void Executable::add_nodes(const Graph& graph, const std::vector<std::vector<Cut>>& cuts, size_t begin,
                           size_t end, size_t depth) {
  for (size_t i = begin; i < end;) {
    if (cuts[i].size() <= depth) {
      add_node_of(graph, i++);
      continue;
    }
    size_t after = i + 1;
    while (after < end && cuts[after].size() > depth && cuts[after][depth] == cuts[i][depth]) ++after;
    add_segment(graph, cuts, i, after, depth);
    i = after;
  }
}

void Executable::add_segment(const Graph& graph, const std::vector<std::vector<Cut>>& cuts, size_t begin,
                             size_t end, size_t depth) {
  const Cut cut = cuts[begin][depth];
  // The nodes of a region inside of a segment have its cut too.
  const auto is_open = [&](bool Cut::*kind) {
    return std::any_of(open_cuts_.begin(), open_cuts_.end(), [&](const Cut& open) { return open.*kind; });
  };
  const bool shards = cut.shards && !is_open(&Cut::shards);
  const bool recomputes = cut.recomputes && !is_open(&Cut::recomputes);
  if (!shards && !recomputes) return add_nodes(graph, cuts, begin, end, depth + 1);
  const size_t marker = steps_.size();
  const size_t number = segments_.size();
  Segment segment;
  segment.path = program_->calls[cut.call].path;
  if (shards) {
    segment.unit = std::make_unique<SegmentUnit>();
    segment.unit->set_activation_checkpointing(recomputes);
  }
  segment.recomputes = recomputes;
  segments_.push_back(std::move(segment));
  Step step;
  step.kind = Step::Kind::kSegment;
  step.segment = number;
  step.where = "the module " + printable(segments_[number].path);
  steps_.push_back(std::move(step));
  open_cuts_.push_back({cut.call, shards, recomputes});
  add_nodes(graph, cuts, begin, end, depth + 1);
  open_cuts_.pop_back();
  steps_[marker].region_end = steps_.size();
  segments_[number].begin = marker + 1;
  segments_[number].end = steps_.size();
}

// Values that exist until the end of a run.
std::vector<bool> Executable::kept_values() const {
  std::vector<bool> kept(roots_.size());
  const auto keep = [&](const auto& self, const Argument& output) -> void {
    if (output.kind == Argument::Kind::kValue) kept[root(output.value)] = true;
    for (const Argument& element : output.elements) self(self, element);
  };
  for (const Argument& output : user_outputs_) keep(keep, output);
  for (const auto& [value, changed] : mutations_) {
    kept[value] = true;
    kept[changed] = true;
  }
  return kept;
}

template <typename Visit>
void Executable::for_each_use(const Step& step, const Visit& visit) const {
  for (const Use& use : step.uses) visit(use.value, use.argument);
  for (const ListUse& list : step.lists) {
    for (const Use& use : list.elements) visit(use.value, list.argument);
  }
}

// Which values may share memory, where they are defined, and when they are changed and used last.
// Positions count steps from 1; 0 is before the first one.
class Executable::Aliases {
 public:
  static constexpr size_t kNever = SIZE_MAX;  // a parameter and the like is defined by no step
  static constexpr size_t kEnd = SIZE_MAX;    // after the last step

  explicit Aliases(const Executable& executable);

  bool is_fixed(ValueId value) const { return defined_[value] == kNever; }
  size_t defined(ValueId value) const { return defined_[value]; }
  size_t last_use(ValueId value) const { return last_use_[value]; }
  // The first of the values that may share memory with it.
  ValueId of(ValueId value) const {
    while (parents_[value] != value) value = parents_[value];
    return value;
  }
  bool has_fixed(ValueId value) const { return has_fixed_[of(value)]; }
  // The last step that changes the memory; 0: none.
  size_t last_change(ValueId value) const { return last_change_[of(value)]; }
  const std::vector<ValueId>& members(ValueId value) const { return members_[of(value)]; }

 private:
  void unite(ValueId a, ValueId b);
  void add_step(const Executable& executable, size_t index);

  std::vector<size_t> defined_;
  std::vector<size_t> last_use_;
  std::vector<ValueId> parents_;
  std::vector<bool> has_fixed_;
  std::vector<size_t> last_change_;
  std::vector<std::vector<ValueId>> members_;
};

void Executable::Aliases::unite(ValueId a, ValueId b) {
  a = of(a);
  b = of(b);
  if (a == b) return;
  if (members_[a].size() < members_[b].size()) std::swap(a, b);
  parents_[b] = a;
  has_fixed_[a] = has_fixed_[a] || has_fixed_[b];
  last_change_[a] = std::max(last_change_[a], last_change_[b]);
  members_[a].insert(members_[a].end(), members_[b].begin(), members_[b].end());
  members_[b].clear();
}

void Executable::Aliases::add_step(const Executable& executable, size_t index) {
  const Step& step = executable.steps_[index];
  if (!step.operation) return;
  const c10::FunctionSchema& schema = step.operation->schema();
  const bool may_return_argument = returns_argument(schema.name());
  std::optional<ValueId> shared;
  std::optional<ValueId> returned;
  executable.for_each_use(step, [&](ValueId value, size_t argument) {
    const c10::Argument& wanted = schema.arguments()[argument];
    const c10::AliasInfo* const info = wanted.alias_info();
    // The schemas of batch norms do not say that they change their statistics.
    const bool changes = (info != nullptr && info->isWrite()) || wanted.name().starts_with("running_");
    if (changes) last_change_[of(value)] = std::max(last_change_[of(value)], index + 1);
    if (info != nullptr) {
      if (shared) unite(*shared, value);
      shared = value;
    } else if (may_return_argument && has_fixed_[of(value)]) {
      returned = value;
    }
  });
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const bool is_alias = schema.returns()[i].alias_info() != nullptr;
    for (const ValueId value : step.outputs[i]) {
      if (is_alias && shared) unite(*shared, value);
      if (returned) unite(*returned, value);
    }
  }
}

Executable::Aliases::Aliases(const Executable& executable) {
  const size_t values = executable.roots_.size();
  defined_.assign(values, kNever);
  last_use_.assign(values, 0);
  last_change_.assign(values, 0);
  members_.resize(values);
  for (size_t i = 0; i < values; ++i) {
    parents_.push_back(static_cast<ValueId>(i));
    members_[i] = {static_cast<ValueId>(i)};
  }
  for (const ValueId input : executable.user_inputs_) defined_[input] = 0;
  for (size_t i = 0; i < executable.steps_.size(); ++i) {
    const Step& step = executable.steps_[i];
    for (const auto& output : step.outputs) {
      for (const ValueId value : output) defined_[value] = i + 1;
    }
    executable.for_each_use(step, [&](ValueId value, size_t) { last_use_[value] = i + 1; });
  }
  for (size_t i = 0; i < values; ++i) has_fixed_.push_back(defined_[i] == kNever);
  for (size_t i = 0; i < executable.steps_.size(); ++i) add_step(executable, i);
  const std::vector<bool> kept = executable.kept_values();
  for (size_t i = 0; i < values; ++i) {
    if (kept[i]) last_use_[i] = kEnd;
  }
  for (const auto& [value, changed] : executable.mutations_) {
    if (of(value) != of(changed)) last_change_[of(changed)] = kEnd;
  }
}

void Executable::describe_segments() {
  owners_.resize(roots_.size());
  used_.resize(roots_.size());
  const Aliases aliases(*this);
  std::vector<size_t> seen(roots_.size());
  std::set<ValueId> parameters;  // the memory of parameters
  for (const Input& input : program_->inputs) {
    if (input.kind == Input::Kind::kParameter) parameters.insert(aliases.of(input.value));
  }
  for (Segment& segment : segments_) {
    describe(segment, aliases, seen);
    for (const ValueId value : segment.state) {
      if (parameters.count(aliases.of(value)) != 0) segment.refusal = "the program changes a parameter of it";
    }
  }
  find_owners(aliases);
}

// `seen` has for each value the last segment that has met it.
void Executable::describe(Segment& segment, const Aliases& aliases, std::vector<size_t>& seen) const {
  const auto refuse = [&](size_t step, std::string_view what) {
    if (!segment.refusal.empty()) return;
    segment.refusal = step == Aliases::kEnd ? fmt::format("the program changes {}", what)
                                            : fmt::format("{} changes {}", steps_[step - 1].where, what);
  };
  // Segments begin after their marker, so that no two have the same number here.
  const size_t number = segment.begin;
  std::map<ValueId, size_t> outputs_of;  // memory that several outputs share
  for (size_t i = segment.begin; i < segment.end; ++i) {
    for_each_use(steps_[i], [&](ValueId value, size_t) {
      const bool is_inside = !aliases.is_fixed(value) && aliases.defined(value) > segment.begin;
      if (is_inside || seen[value] == number) return;
      seen[value] = number;
      const size_t changed = aliases.last_change(value);
      if (!aliases.is_fixed(value)) {
        segment.inputs.push_back(value);
        if (changed > segment.begin) refuse(changed, "a value in place that comes from outside of it");
      } else if (changed != 0) {
        segment.state.push_back(value);
      } else {
        segment.fixed.push_back(value);
      }
    });
    for (const auto& output : steps_[i].outputs) {
      for (const ValueId value : output) {
        segment.defined.push_back(value);
        if (aliases.last_use(value) <= segment.end) continue;
        segment.outputs.push_back(value);
        const size_t changed = aliases.last_change(value);
        if (++outputs_of[aliases.of(value)] > 1 && changed > segment.end) {
          refuse(changed, "one of its results in place, of which another one is a view");
        }
      }
    }
  }
}

void Executable::find_owners(const Aliases& aliases) {
  constexpr size_t kMaxMembers = 64;
  constexpr size_t kNobody = SIZE_MAX;
  constexpr size_t kRoot = SIZE_MAX - 1;
  std::vector<size_t> segment_of(steps_.size(), kRoot);
  std::vector<bool> leaks(segments_.size());
  for (size_t k = 0; k < segments_.size(); ++k) {
    if (segments_[k].unit == nullptr) continue;
    for (size_t i = segments_[k].begin; i < segments_[k].end; ++i) segment_of[i] = k;
  }
  // What a segment adds in place to a value from outside has a backward that no output of the segment
  // announces, so its parameters must be there at all times.
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (segment_of[i] == kRoot || !steps_[i].operation) continue;
    const Segment& segment = segments_[segment_of[i]];
    const c10::FunctionSchema& schema = steps_[i].operation->schema();
    for_each_use(steps_[i], [&](ValueId value, size_t argument) {
      const c10::AliasInfo* const info = schema.arguments()[argument].alias_info();
      if (info == nullptr || !info->isWrite() || aliases.has_fixed(value)) return;
      const auto& members = aliases.members(value);
      const bool is_outside =
          members.size() > kMaxMembers || std::any_of(members.begin(), members.end(), [&](ValueId member) {
            return aliases.defined(member) <= segment.begin && aliases.last_use(member) > segment.end;
          });
      if (is_outside) leaks[segment_of[i]] = true;
    });
  }
  std::vector<size_t> owner(roots_.size(), kNobody);  // by memory
  for (size_t i = 0; i < steps_.size(); ++i) {
    const size_t own = segment_of[i] != kRoot && leaks[segment_of[i]] ? kRoot : segment_of[i];
    for_each_use(steps_[i], [&](ValueId value, size_t) {
      size_t& present = owner[aliases.of(value)];
      present = present == kNobody || present == own ? own : kRoot;
    });
  }
  const std::vector<bool> kept = kept_values();
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i]) owner[aliases.of(static_cast<ValueId>(i))] = kRoot;
  }
  for (size_t i = 0; i < roots_.size(); ++i) {
    const size_t own = owner[aliases.of(static_cast<ValueId>(i))];
    used_[i] = own != kNobody;
    if (own < kRoot) owners_[i] = own;
  }
}

// --- a run ---

struct Executable::SegmentCall {
  Frame* live = nullptr;  // during the forward
  bool training = true;
  c10::Device device{at::kCPU};
  std::vector<ValueId> inputs;  // the tensors among them
  std::vector<std::pair<ValueId, c10::IValue>> numbers;
  std::vector<std::pair<ValueId, at::Tensor>> state;  // as it was before
};

void Executable::run_segment(size_t index, Frame& frame) {
  const Segment& segment = segments_[index];
  const auto body = [&] {
    const bool recomputes = segment.unit ? segment.unit->checkpoints() : segment.recomputes;
    if (recomputes && at::GradMode::is_enabled()) {
      run_recomputed(index, frame);
    } else {
      run_steps(segment.begin, segment.end, frame);
    }
  };
  if (segment.unit == nullptr || !segment.unit->attached()) return body();
  segment.unit->run([&] {
    body();
    std::vector<at::Tensor> outputs;
    for (const ValueId value : segment.outputs) {
      if (frame.values[value].isTensor()) outputs.push_back(frame.values[value].toTensor());
    }
    return outputs;
  });
}

// Runs a segment so that the graph keeps its inputs alone.
void Executable::run_recomputed(size_t index, Frame& frame) {
  const Segment& segment = segments_[index];
  if (!segment.refusal.empty()) {
    throw ConfigError("exported", fmt::format("cannot compute the activations of the module '{}' again: {}",
                                              segment.path, segment.refusal));
  }
  const auto call = std::make_shared<SegmentCall>();
  call->live = &frame;
  call->training = *training_;
  call->device = *device_;
  std::vector<at::Tensor> inputs;
  for (const ValueId value : segment.inputs) {
    if (frame.values[value].isTensor()) {
      call->inputs.push_back(value);
      inputs.push_back(frame.values[value].toTensor());
    } else {
      call->numbers.emplace_back(value, frame.values[value]);
    }
  }
  std::vector<at::Tensor> parameters;
  for (const ValueId value : segment.fixed) {
    if (frame.values[value].isTensor()) parameters.push_back(frame.values[value].toTensor());
  }
  for (const ValueId value : segment.state) {
    const at::NoGradGuard no_grad;
    if (frame.values[value].isTensor())
      call->state.emplace_back(value, frame.values[value].toTensor().clone());
  }
  const auto function = [self = shared_from_this(), index, call](const std::vector<at::Tensor>& tensors) {
    return self->run_again(index, *call, tensors);
  };
  const std::vector<at::Tensor> outputs = recompute_in_backward(function, inputs, parameters);
  size_t next = 0;
  for (const ValueId value : segment.outputs) {
    if (frame.values[value].isTensor()) frame.values[value] = outputs[next++];
  }
  call->live = nullptr;
}

// In the forward with the values that are there; in backward with copies of what the forward changes.
std::vector<at::Tensor> Executable::run_again(size_t index, const SegmentCall& call,
                                              const std::vector<at::Tensor>& tensors) {
  const Segment& segment = segments_[index];
  const auto results = [&](const Frame& frame) {
    std::vector<at::Tensor> outputs;
    for (const ValueId value : segment.outputs) {
      if (frame.values[value].isTensor()) outputs.push_back(frame.values[value].toTensor());
    }
    return outputs;
  };
  if (call.live != nullptr) {
    run_steps(segment.begin, segment.end, *call.live);
    return results(*call.live);
  }
  prepare(call.training, call.device);
  Frame frame = take_frame();
  for (size_t i = 0; i < tensors.size(); ++i) frame.values[call.inputs[i]] = tensors[i];
  for (const auto& [value, number] : call.numbers) frame.values[value] = number;
  for (const auto& [value, before] : call.state) frame.values[value] = before.clone();
  run_steps(segment.begin, segment.end, frame);
  std::vector<at::Tensor> outputs = results(frame);
  for (const auto* values : {&segment.inputs, &segment.state, &segment.defined}) {
    for (const ValueId value : *values) frame.values[value] = fixed_[value];
  }
  spare_frames_.push_back(std::move(frame));
  return outputs;
}

}  // namespace lockstep::exported
