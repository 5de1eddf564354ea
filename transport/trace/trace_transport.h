#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "transport/endpoint.h"
#include "transport/trace/trace_ring.h"

namespace isthmus {

class TraceEndpoint;

// Wraps a transport, which it owns, and records what passes: posts with their answers, completions,
// cancels, notices, deaths. Changes nothing. Costs one clock reading and one record each, and
// allocates nothing after the first use of a peer.
// Thread rule: the wrapped transport's; ring() too.
class TraceTransport final : public Transport {
 public:
  static constexpr std::size_t kDefaultRecords = std::size_t{1} << 16;

  // The clock gives nanoseconds: a simulated network's own, say.
  TraceTransport(std::unique_ptr<Transport> inner, int rank, std::size_t records = kDefaultRecords,
                 std::function<std::int64_t()> clock = monotonic_ns);
  ~TraceTransport() override;

  const TraceRing& ring() const { return ring_; }

  std::string_view name() const override { return inner_->name(); }

  bool reaches(int peer) const override { return inner_->reaches(peer); }

  std::vector<std::byte> address() const override { return inner_->address(); }

  Status set_address(int peer, std::span<const std::byte> address) override {
    return inner_->set_address(peer, address);
  }

  Endpoint& endpoint(int peer) override;
  bool poll(Events* events) override;
  void notify(int peer, const Notice& notice) override;

  void wait_descriptors(std::vector<int>* fds) override { inner_->wait_descriptors(fds); }

  void shutdown() override;

 private:
  friend class TraceEndpoint;

  void record_post(TraceRecord::Kind kind, int peer, const Tag& tag, std::size_t bytes, Token token,
                   const Result<Endpoint::Post>& answer);
  void record_cancel(int peer, std::uint64_t operation);
  void record_notice(TraceRecord::Kind kind, int peer, const Notice& notice);

  std::unique_ptr<Transport> inner_;
  TraceRing ring_;
  std::function<std::int64_t()> clock_;
  std::map<int, std::unique_ptr<TraceEndpoint>> endpoints_;
};

// One peer, with a record of each call. Owned by its TraceTransport.
class TraceEndpoint final : public Endpoint {
 public:
  TraceEndpoint(TraceTransport* transport, Endpoint* inner, int peer)
      : transport_(transport), inner_(inner), peer_(peer) {}

  Result<Post> post_send(const Tag& tag, const OperationInfo& info, std::span<const std::byte> data,
                         Token token) override;
  Result<Post> post_recv(const Tag& tag, const OperationInfo& info, std::span<std::byte> data,
                         Token token) override;
  bool offers(const Tag& tag) const override;
  void cancel(std::uint64_t operation) override;

 private:
  TraceTransport* transport_;  // the owner
  Endpoint* inner_;            // owned by the wrapped transport
  int peer_;
};

}  // namespace isthmus
