#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "transport/endpoint.h"
#include "transport/tcp/options.h"

namespace isthmus {

namespace tcp {
class Connector;
class Lane;
struct LaneShared;
}  // namespace tcp

// Lanes over TCP: one connection a pair of ranks, made on first use, further ones over all rails
// when much data passes, and one epoll; no threads.
// docs/wire.md describes what travels. Sends go out within post_send() where the socket takes them.
//
// poll() costs one system call when there is nothing to do, and mostly none when nothing is waited
// for. A thread that wants to sleep on wait_descriptors() polls until poll() returned false after
// its last post.
// Thread rule: Transport's. Owns all descriptors; close-on-exec and listed for fork (base/fork.h).
class TcpTransport final : public Transport {
 public:
  static Result<std::unique_ptr<TcpTransport>> create(const TcpOptions& options);

  // Drops everything without a goodbye: peers see this rank as dead, unless shutdown() came first.
  ~TcpTransport() override;

  std::string_view name() const override { return "tcp"; }

  std::vector<std::byte> address() const override;
  Status set_address(int peer, std::span<const std::byte> address) override;
  Endpoint& endpoint(int peer) override;
  bool poll(Events* events) override;
  void notify(int peer, const Notice& notice) override;
  void wait_descriptors(std::vector<int>* fds) override;
  void shutdown() override;

 private:
  explicit TcpTransport(const TcpOptions& options);

  tcp::Lane& lane(int peer);
  bool hand_over(Events* events);
  bool poll_epoll();
  bool pump_active();
  void let_go_held();
  void check_silence();
  void check_rails();
  tcp::Lane* only_waiting_lane();

  std::unique_ptr<tcp::LaneShared> shared_;
  Fd epoll_;
  std::unique_ptr<tcp::Connector> connector_;
  std::vector<std::unique_ptr<tcp::Lane>> lanes_;  // by peer; made on first use
  std::vector<tcp::Lane*> pumping_;                // the active lanes of this poll
  std::uint32_t direct_polls_ = 0;
  std::int64_t silence_checked_ns_ = 0;
  bool shut_down_ = false;
};

}  // namespace isthmus
