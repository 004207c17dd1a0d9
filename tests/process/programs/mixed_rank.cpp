// A C++ rank in a process group of PyTorch: tests/peers/test_mixed_group.py.
//
//   mixed_rank RANK SIZE PORT
//
// Joins the default group that the Python ranks made with init_process_group("gloo")
// at 127.0.0.1:PORT, where rank 0 is one of them.

#include <fmt/format.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  if (argc != 4) {
    return 64;
  }
  lockstep::RankMap map;
  map.rank = std::stoi(argv[1]);
  map.world_size = std::stoi(argv[2]);
  map.rendezvous.kind = lockstep::Rendezvous::Kind::kTcp;
  map.rendezvous.address = "127.0.0.1";
  map.rendezvous.port = static_cast<uint16_t>(std::stoi(argv[3]));
  lockstep::CommunicatorOptions options;
  options.backend = "gloo";
  options.timeout = std::chrono::seconds(60);
  try {
    auto store = lockstep::open_store(map, std::chrono::seconds(60));
    auto group =
        lockstep::make_communicator(lockstep::python_default_group(store), map.rank, map.world_size, options);
    at::Tensor tensor = torch::arange(5, at::kDouble) + 10 * group.rank();
    group.all_reduce(tensor).wait();
    at::Tensor all = torch::empty({group.size()});
    group.all_gather(all, torch::full({1}, group.rank() + 0.5)).wait();
    const std::string word = group.broadcast_bytes(group.rank() == map.world_size - 1 ? "from C++" : "", 0);
    group.barrier();
    std::puts(fmt::format("{} {} {} {}", tensor[0].item<double>(), tensor[4].item<double>(),
                          all.sum().item<float>(), word)
                  .c_str());
    return 0;
  } catch (const lockstep::Error& error) {
    std::puts(error.what());
    return 1;
  }
}
