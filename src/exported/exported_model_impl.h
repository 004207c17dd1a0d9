#pragma once

#include <lockstep/exported_model.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exported/archive.h"
#include "exported/executable.h"
#include "exported/input_rules.h"

namespace lockstep {

struct ExportedModelImpl::Impl {
  // A tensor that is no parameter or buffer of the module and moves with it: a constant, or a non-persistent
  // buffer whose elements share memory, which nothing can write.
  struct Unregistered {
    std::string name;
    exported::ValueId value;
    at::Tensor tensor;
    bool is_buffer;  // Python's to(dtype) converts buffers, not constants
  };

  Impl(std::string file_, std::shared_ptr<const exported::Program> program_)
      : file(std::move(file_)), program(std::move(program_)), rules(*program) {
    make_executable("auto", "");
    for (const exported::Input& input : program->inputs) {
      if (input.kind == exported::Input::Kind::kUser && !input.only_value) input_names.push_back(input.name);
    }
    for (const exported::Output& output : program->outputs) {
      if (output.kind == exported::Output::Kind::kUser) output_names.push_back(output.name);
    }
  }

  // exported::ProgramError: a pattern matches nothing, or a module cannot compute its activations again.
  void make_executable(const std::string& shard, const std::string& recompute);
  // Gives all tensors to the program.
  void bind_tensors();
  void follow_parameters();

  // The values of a call. A call takes the memory of the one before.
  struct Values {
    std::vector<c10::IValue> inputs;
    std::vector<c10::IValue> outputs;
  };
  Values take_values() { return std::move(spare_values); }
  void give_back(Values values);
  // Sets the outputs. ConfigError: as ExportedModelImpl::run().
  void run(const std::vector<c10::IValue>& inputs, bool training, std::vector<c10::IValue>& outputs);

  std::string file;
  std::shared_ptr<const exported::Program> program;
  std::string sharded;  // the patterns
  std::string recomputed;
  std::shared_ptr<exported::Executable> executable;
  exported::InputRules rules;
  std::vector<std::string> input_names;
  std::vector<std::string> output_names;
  std::vector<exported::Payload> registered;  // in the order of Python's named_buffers() and state dict
  std::vector<Unregistered> unregistered;
  at::Tensor leader;                         // a tensor of the module, of floating point if there is one
  at::ScalarType loaded_dtype = at::kFloat;  // of `leader` in the file
  Values spare_values;
};

}  // namespace lockstep
