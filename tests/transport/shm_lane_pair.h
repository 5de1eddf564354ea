#pragma once

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "transport/shm/shm_lane.h"

namespace isthmus::shm_test {

inline constexpr std::array<int, 2> kRankOf = {3, 7};  // world ranks of the two ends

// Two lanes over the same memory, without processes, nodes or mappings: what one side writes the
// other reads at the same address, so tsan sees both, and a test can write what no lane would.
class LanePair {
 public:
  explicit LanePair(std::size_t local_ranks = 2) : geometry_(LaneGeometry::of(local_ranks)) {
    for (std::size_t side = 0; side < 2; ++side) {
      memory_[side].reset(static_cast<std::byte*>(std::aligned_alloc(4096, geometry_.stride)));
      std::fill_n(memory_[side].get(), geometry_.stride, std::byte{0});
      bell_fds_[side] = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      pieces_[side] =
          LaneView::make(memory_[side].get(), geometry_, kRankOf[side], kRankOf[1 - side]);
    }
    for (std::size_t side = 0; side < 2; ++side) {
      shared_[side].rank = kRankOf[side];
      const ShmNode::LanePeer places{.out = pieces_[side],
                                     .in = pieces_[1 - side],
                                     .chunk_bytes = geometry_.chunk_bytes,
                                     .bell = &bells_[1 - side],
                                     .bell_fd = bell_fds_[1 - side].get()};
      lanes_[side] = std::make_unique<shm::ShmLane>(&shared_[side], kRankOf[1 - side], places);
    }
  }

  shm::ShmLane& lane(std::size_t side) { return *lanes_[side]; }

  // What this side wrote, or seems to have.
  LaneView& piece(std::size_t side) { return pieces_[side]; }

  shm::LaneShared& shared(std::size_t side) { return shared_[side]; }

  const LaneGeometry& geometry() const { return geometry_; }

  // Completions of one side since the last call.
  std::vector<Completion> completions(std::size_t side) {
    std::vector<Completion> out;
    for (const shm::LaneShared::Pending& pending : shared_[side].completions) {
      out.push_back(pending.completion);
    }
    shared_[side].completions.clear();
    return out;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  LaneGeometry geometry_;
  std::array<std::unique_ptr<std::byte, Free>, 2> memory_;
  std::array<Bell, 2> bells_;
  std::array<Fd, 2> bell_fds_;
  std::array<LaneView, 2> pieces_;
  std::array<shm::LaneShared, 2> shared_;
  std::array<std::unique_ptr<shm::ShmLane>, 2> lanes_;
};

}  // namespace isthmus::shm_test
