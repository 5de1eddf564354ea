// Sums a vector over all ranks. Start one process a rank with torchrun, mpirun or srun, or with
// `examples/cpp/launch.sh 4 all_reduce`: World::from_launcher() reads what they put into the
// environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and their kin).

#include <cstdio>
#include <memory>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/world.h"

namespace {

int fail(const isthmus::Error& error) {
  std::fprintf(stderr, "all_reduce: %s\n", error.to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  auto joined = isthmus::World::from_launcher();
  if (!joined.ok()) {
    return fail(joined.error());
  }
  const std::unique_ptr<isthmus::World> world = std::move(joined).value();
  isthmus::Communicator& group = world->communicator();

  std::vector<float> numbers(1 << 20, static_cast<float>(group.rank() + 1));
  const isthmus::Status summed = group.all_reduce(numbers.data(), numbers.data(), numbers.size(),
                                                  isthmus::DType::kFloat32, isthmus::RedOp::kSum);
  if (!summed.ok()) {
    return fail(summed.error());
  }
  const float expected = static_cast<float>(group.size() * (group.size() + 1)) / 2.0F;
  for (const float number : numbers) {
    if (number != expected) {
      std::fprintf(stderr, "all_reduce: got %g, expected %g\n", static_cast<double>(number),
                   static_cast<double>(expected));
      return 1;
    }
  }
  std::printf("rank %d of %d: every element is %g\n", group.rank(), group.size(),
              static_cast<double>(expected));
  return 0;
}
