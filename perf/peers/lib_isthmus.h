#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "collectives/communicator.h"
#include "collectives/world.h"

// Ours, by its C++ API. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the environment, or
// from mpirun or srun. Any failure ends the process.
class Lib {
 public:
  static constexpr bool kAllToAll = true;

  Lib(int*, char***) : world_(checked(isthmus::World::from_launcher())) {}

  int rank() const { return world_->rank(); }

  int size() const { return world_->size(); }

  void barrier() { check(group().barrier()); }

  double max(double x) {
    check(group().all_reduce(&x, &x, 1, isthmus::DType::kFloat64, isthmus::RedOp::kMax));
    return x;
  }

  void all_reduce(float* buffer, std::size_t count) {
    check(group().all_reduce(buffer, buffer, count, dtype_, isthmus::RedOp::kSum));
  }

  // Of all_reduce; the other operations move float32. Returns the bytes of an element.
  std::size_t use_dtype(const std::string& name) {
    if (name != "float32") {
      dtype_ = name == "bfloat16" ? isthmus::DType::kBFloat16 : isthmus::DType::kFloat16;
    }
    return isthmus::dtype_bytes(dtype_);
  }

  // Memory that the ranks of the node read in place; lives as long as this.
  float* own_room(std::size_t floats) {
    rooms_.push_back(checked(world_->allocate(floats * sizeof(float))));
    return reinterpret_cast<float*>(rooms_.back().data());
  }

  void all_gather(float* buffer, std::size_t count) {
    check(group().all_gather(buffer + offset(count), buffer, count, kFloat));
  }

  float* reduce_scatter(float* buffer, std::size_t count) {
    float* mine = buffer + offset(count);
    check(group().reduce_scatter(buffer, mine, count, kFloat, isthmus::RedOp::kSum));
    return mine;
  }

  void broadcast(float* buffer, std::size_t count, int root) {
    check(group().broadcast(buffer, count, kFloat, root));
  }

  void all_to_all(float* in, float* out, std::size_t count) {
    check(group().all_to_all(in, out, count, kFloat));
  }

 private:
  static constexpr isthmus::DType kFloat = isthmus::DType::kFloat32;

  [[noreturn]] static void fail(const isthmus::Error& error) {
    std::fprintf(stderr, "bench: %s\n", error.to_string().c_str());
    std::exit(1);
  }

  static void check(const isthmus::Status& status) {
    if (!status.ok()) {
      fail(status.error());
    }
  }

  template <typename T>
  static T checked(isthmus::Result<T> result) {
    if (!result.ok()) {
      fail(result.error());
    }
    return std::move(result).value();
  }

  isthmus::Communicator& group() { return world_->communicator(); }

  std::size_t offset(std::size_t count) const { return static_cast<std::size_t>(rank()) * count; }

  std::unique_ptr<isthmus::World> world_;
  std::vector<isthmus::MemoryRegion> rooms_;
  isthmus::DType dtype_ = kFloat;
};
