#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "transport/endpoint.h"
#include "transport/shm/shm_node.h"

namespace isthmus {

namespace shm {
class ShmLane;
struct LaneShared;
}  // namespace shm

// Message lanes through shared memory to the other ranks of this node; README.md describes the
// rings. Everything is mapped when it is made, so nothing is connected later.
//
// poll() looks at one cache line a peer when there is nothing to do, and makes no system call but a
// look for deaths every millisecond of idling. Thread rule: Transport's.
class ShmTransport final : public Transport {
 public:
  // node: connected, and outlives this.
  static Result<std::unique_ptr<ShmTransport>> create(ShmNode* node);

  // Without shutdown() before it, peers hear no goodbye; they see the end of the process.
  ~ShmTransport() override;

  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  std::string_view name() const override { return "shm"; }

  bool reaches(int peer) const override;
  std::vector<std::byte> address() const override;
  Status set_address(int peer, std::span<const std::byte> address) override;
  Endpoint& endpoint(int peer) override;
  bool poll(Events* events) override;
  void notify(int peer, const Notice& notice) override;
  void wait_descriptors(std::vector<int>* fds) override;
  void shutdown() override;

 private:
  explicit ShmTransport(ShmNode* node);

  void arm();
  void disarm();
  void look_around();
  bool bury();
  bool hand_over(Events* events);

  ShmNode* node_;
  std::unique_ptr<shm::LaneShared> shared_;
  std::vector<std::unique_ptr<shm::ShmLane>> lanes_;  // by world rank, null for other nodes'
  std::vector<shm::ShmLane*> live_;                   // those that are not over
  std::uint32_t idle_polls_ = 0;
  std::int64_t looked_ns_ = 0;
  std::uint32_t deaths_ = 0;  // of the node's, those that were acted on
  bool armed_ = false;        // the bell's flag is up because of wait_descriptors()
  bool shut_down_ = false;
};

}  // namespace isthmus
