// The C++ blocks of the pages: DOCS_PROGRAM=NAME runs one program, else all fragments run one after the
// other, on every rank.

namespace lockstep {
class World;
struct TrainConfig;
}  // namespace lockstep

struct Program {
  const char* name;
  int (*main)(int argc, char** argv);
};

struct Fragment {
  const char* place;
  void (*run)(lockstep::World& world, const lockstep::TrainConfig& config);
};

// No header comes before it: what a program includes must be enough.
#include "blocks.inc"

#include <lockstep/lockstep.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int run_program(const std::string& name, int argc, char** argv) {
  for (const Program& program : kPrograms) {
    if (program.name == name) return program.main(argc, argv);
  }
  std::fprintf(stderr, "no program %s\n", name.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* name = std::getenv("DOCS_PROGRAM")) return run_program(name, argc, argv);
  return lockstep::launch(argc, argv, {.max_iter = 2},
                          [](lockstep::World& world, const lockstep::TrainConfig& config) {
                            for (const Fragment& fragment : kFragments) {
                              if (world.is_main()) std::fprintf(stderr, "%s\n", fragment.place);
                              fragment.run(world, config);
                            }
                          });
}
