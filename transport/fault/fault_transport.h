#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/fd.h"
#include "transport/endpoint.h"
#include "transport/fault/fault_script.h"

namespace isthmus {

class FaultEndpoint;

// Wraps a transport, which it owns, and injects what its script says. With an empty script nobody
// can tell the difference. All of it is contract: a caller must come through whatever this does,
// with a clear failure where data is lost. Thread rule: the wrapped transport's.
class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, FaultScript script);
  ~FaultTransport() override;

  // From now on the peer counts as dead here; the peer itself does not know.
  void kill_peer(int peer);

  // How often faults of this kind were injected.
  std::uint64_t injected(FaultRule::Kind kind) const {
    return injected_[static_cast<std::size_t>(kind)];
  }

  std::string_view name() const override { return inner_->name(); }

  bool reaches(int peer) const override { return inner_->reaches(peer); }

  std::vector<std::byte> address() const override { return inner_->address(); }

  Status set_address(int peer, std::span<const std::byte> address) override {
    return inner_->set_address(peer, address);
  }

  Endpoint& endpoint(int peer) override;
  bool poll(Events* events) override;
  void notify(int peer, const Notice& notice) override;

  // With one that is always ready while something is held back.
  void wait_descriptors(std::vector<int>* fds) override;

  void shutdown() override;

 private:
  friend class FaultEndpoint;

  static constexpr std::size_t kKinds = 9;

  struct RuleState {
    FaultRule rule;
    std::uint32_t seen = 0;
    std::uint32_t hit = 0;
  };

  // What the script does to one post.
  struct Plan {
    bool busy = false;
    bool kill = false;
    const Error* error = nullptr;
    std::uint32_t delay_polls = 0;
    bool held = false;  // a delay applies, perhaps of no poll
    bool lose = false;
    bool fail = false;
    Code fail_code = Code::kInternal;
    std::size_t shorten = 0;
  };

  // A post that the wrapped transport has not completed; its token names the slot.
  struct Slot {
    bool live = false;
    bool is_recv = false;
    int peer = -1;
    std::uint64_t operation = 0;
    std::size_t bytes = 0;
    Token token;
    Plan plan;
  };

  // A completion that is kept back.
  struct Held {
    std::uint64_t due_poll = 0;
    int peer = -1;
    std::uint64_t operation = 0;
    Completion completion;
  };

  template <typename Span>
  Result<Endpoint::Post> post(Endpoint& inner, int peer, bool is_recv, const Tag& tag,
                              const OperationInfo& info, Span data, Token token);
  void cancel(Endpoint& inner, int peer, std::uint64_t operation);
  bool hits(RuleState* state, int peer, FaultRule::Side side);
  Plan plan_post(int peer, bool is_recv);
  std::uint32_t take_slot();
  void finish(const Slot& slot, Completion completion);

  void count(FaultRule::Kind kind) { ++injected_[static_cast<std::size_t>(kind)]; }

  bool drops_notice(int peer, FaultRule::Side side);

  std::unique_ptr<Transport> inner_;
  std::vector<RuleState> rules_;
  std::uint64_t random_state_;
  std::uint64_t polls_ = 0;
  std::array<std::uint64_t, kKinds> injected_{};
  std::map<int, std::unique_ptr<FaultEndpoint>> endpoints_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Held> held_;
  std::set<int> killed_;
  std::vector<int> killed_untold_;
  Events scratch_;
  Fd ready_;  // an eventfd that nobody reads; made when first needed
};

// One peer, seen through the faults. Owned by its FaultTransport.
class FaultEndpoint final : public Endpoint {
 public:
  FaultEndpoint(FaultTransport* transport, Endpoint* inner, int peer)
      : transport_(transport), inner_(inner), peer_(peer) {}

  Result<Post> post_send(const Tag& tag, const OperationInfo& info, std::span<const std::byte> data,
                         Token token) override;
  Result<Post> post_recv(const Tag& tag, const OperationInfo& info, std::span<std::byte> data,
                         Token token) override;
  bool offers(const Tag& tag) const override;
  void cancel(std::uint64_t operation) override;

 private:
  FaultTransport* transport_;  // the owner
  Endpoint* inner_;            // owned by the wrapped transport
  int peer_;
};

}  // namespace isthmus
