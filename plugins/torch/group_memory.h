#pragma once

// Included by shim.cc only: torch's own buffers in memory of a group.
#include <cstddef>
#include <memory>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "collectives/world.h"
#include "plugins/torch/store.h"

namespace isthmus::plugin {

// While a scope is open, large CPU tensors that its thread makes lie in memory of a world, which
// the ranks of the node use in place. For buffers that torch makes out of sight, as the buckets of
// DistributedDataParallel are. torch has one CPU allocator a process: this one stands before it for
// as long, and hands everything else on, also of other threads.
class GroupMemoryScope {
 public:
  // Fails with ValueError where another library's allocator has precedence.
  explicit GroupMemoryScope(World& world) : outer_(std::exchange(of_thread(), &world)) {
    c10::SetCPUAllocator(&Before::allocator());
    if (c10::GetCPUAllocator() != &Before::allocator()) {
      of_thread() = outer_;
      refuse(Code::kUnsupported,
             "isthmus cannot place torch's buffers: another library has set torch's CPU "
             "allocator, with precedence. Set it later, or do without use_group_memory.");
    }
  }

  ~GroupMemoryScope() {
    of_thread() = outer_;
    c10::SetCPUAllocator(&Before::allocator().torch());
  }

  GroupMemoryScope(const GroupMemoryScope&) = delete;
  GroupMemoryScope& operator=(const GroupMemoryScope&) = delete;

 private:
  // Smaller tensors do not gain from it.
  static constexpr std::size_t kLeastBytes = 8192;

  class Before final : public c10::Allocator {
   public:
    // Never destroyed: memory that it handed out may outlive static objects.
    static Before& allocator() {
      static Before& instance = *std::make_unique<Before>().release();
      return instance;
    }

    c10::Allocator& torch() const { return torch_; }

    c10::DataPtr allocate(std::size_t bytes) override {
      World* const world = of_thread();
      if (world == nullptr || bytes < kLeastBytes) {
        return torch_.allocate(bytes);
      }
      Result<MemoryRegion> taken = world->allocate(bytes);
      if (!taken.ok()) {
        return torch_.allocate(bytes);
      }
      auto region = std::make_unique<MemoryRegion>(std::move(taken).value());
      void* const data = region->data();
      return {data, region.release(), &give_back, c10::Device(c10::DeviceType::CPU)};
    }

    // raw_allocate() is not for what an open scope hands out.
    c10::DeleterFnPtr raw_deleter() const override { return torch_.raw_deleter(); }

    void copy_data(void* to, const void* from, std::size_t bytes) const override {
      default_copy_data(to, from, bytes);
    }

   private:
    static void give_back(void* region) {
      const std::unique_ptr<MemoryRegion> held(static_cast<MemoryRegion*>(region));
    }

    c10::Allocator& torch_ = *c10::GetCPUAllocator();
  };

  static World*& of_thread() {
    static thread_local World* world = nullptr;
    return world;
  }

  World* const outer_;
};

}  // namespace isthmus::plugin
