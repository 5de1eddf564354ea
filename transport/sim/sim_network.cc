#include "transport/sim/sim_network.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"
#include "transport/sim/sim_transport.h"

namespace isthmus {
namespace {

// Cancelled operations that a lane remembers; older ones are long over.
constexpr std::size_t kCancelledMax = 4096;

Completion success(Token token, std::size_t bytes, bool is_recv) {
  Completion completion;
  completion.token = token;
  completion.is_recv = is_recv;
  completion.bytes = bytes;
  return completion;
}

}  // namespace

SimNetwork::SimNetwork(const SimConfig& config)
    : config_(config),
      random_state_(mix64(config.seed)),
      ranks_(static_cast<std::size_t>(config.ranks)) {
  ISTHMUS_CHECK(config.ranks > 0, "a network has at least one rank");
  ISTHMUS_CHECK(config.chunk_bytes > 0, "a chunk has at least one byte");
}

SimNetwork::~SimNetwork() = default;

std::unique_ptr<Transport> SimNetwork::transport(int rank) {
  ISTHMUS_CHECK(rank >= 0 && rank < config_.ranks, "rank outside the network");
  ISTHMUS_CHECK(!rank_state(rank).taken, "a rank has one transport");
  rank_state(rank).taken = true;
  return std::make_unique<SimTransport>(this, rank);
}

void SimNetwork::set_link(int from, int to, const SimLink& link) {
  lane(from, to).link = link;
}

SimNetwork::Lane& SimNetwork::lane(int rank, int peer) {
  ISTHMUS_CHECK(peer >= 0 && peer < config_.ranks, "peer outside the network");
  const auto [it, added] = lanes_.try_emplace({rank, peer});
  if (added) {
    it->second.link = config_.link;
  }
  return it->second;
}

std::uint64_t SimNetwork::random(std::uint64_t below) {
  random_state_ += 0x9e3779b97f4a7c15ULL;
  return below == 0 ? 0 : mix64(random_state_) % below;
}

void SimNetwork::schedule(Event event, std::int64_t at_ns) {
  event.at_ns = at_ns;
  event.order = random(~std::uint64_t{0});
  events_.push(std::move(event));
}

// Events that come to a stalled rank keep their order: before all others of that time.
void SimNetwork::postpone(Event event, std::int64_t at_ns) {
  event.at_ns = at_ns;
  event.order = postponed_++;
  events_.push(std::move(event));
}

// Puts a frame on the link of a lane; `event` happens when it has arrived.
void SimNetwork::transmit(Event event, int from, int to, std::size_t bytes) {
  Lane& out = lane(from, to);
  const std::int64_t occupied =
      static_cast<std::int64_t>(bytes) * out.link.ns_per_kib / std::int64_t{1024};
  out.free_ns = std::max(out.free_ns, now_ns_) + occupied;
  const std::int64_t jitter =
      static_cast<std::int64_t>(random(static_cast<std::uint64_t>(config_.jitter_ns) + 1));
  const std::int64_t at_ns = out.free_ns + out.link.latency_ns + jitter;
  out.last_arrival_ns = std::max(out.last_arrival_ns, at_ns);
  schedule(std::move(event), at_ns);
}

Status SimNetwork::usable(int rank, int peer, std::string_view what, std::size_t bytes,
                          const Tag& tag) {
  const Rank& self = rank_state(rank);
  if (self.gone || self.left) {
    return Error{.code = Code::kAborted,
                 .culprit = rank,
                 .message = fmt::format("cannot {} {} bytes: this transport (rank {}) is {}", what,
                                        bytes, rank, self.gone ? "killed" : "shut down")};
  }
  const Lane& here = lane(rank, peer);
  if (here.down || here.left) {
    return Error{.code = Code::kPeerDead,
                 .culprit = peer,
                 .message = fmt::format(
                     "cannot {} {} bytes (operation {:#x}, message {}): rank {} {}", what, bytes,
                     tag.operation, tag.message, peer, here.down ? "is gone" : "has left")};
  }
  return {};
}

Result<Endpoint::Post> SimNetwork::post_send(int from, int to, const Tag& tag,
                                             const OperationInfo& info,
                                             std::span<const std::byte> data, Token token) {
  ISTHMUS_TRY(usable(from, to, "send", data.size(), tag));
  Lane& out = lane(from, to);
  if (out.sends.contains(tag)) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("a send to rank {} with operation {:#x} and message {} is "
                                        "in flight already",
                                        to, tag.operation, tag.message)};
  }
  Message message;
  message.eager = static_cast<std::int64_t>(data.size()) <= config_.eager_bytes_max;
  const bool full = message.eager ? out.eager_bytes > 0 &&
                                        out.eager_bytes + data.size() > config_.lane_eager_bytes_max
                                  : out.sends.size() >= config_.lane_posts_max;
  if (full) {
    return Endpoint::Post::kBusy;
  }
  out.used = true;
  out.cancelled.erase(tag.operation);
  message.from = from;
  message.to = to;
  message.tag = tag;
  message.info = info;
  message.bytes = data.size();
  message.sender = token;
  const std::uint64_t id = next_message_++;
  const bool eager = message.eager;
  if (eager) {
    message.copy.assign(data.begin(), data.end());
    out.eager_bytes += data.size();
  } else {
    message.source = data.data();
    out.sends.emplace(tag, id);
  }
  messages_.emplace(id, std::move(message));
  transmit({.kind = Event::Kind::kArrive, .rank = to, .peer = from, .message = id}, from, to,
           kControlBytes + (eager ? data.size() : 0));
  if (eager && !config_.eager_done) {
    complete(from, to, tag, success(token, data.size(), false));
  }
  return eager && config_.eager_done ? Endpoint::Post::kDone : Endpoint::Post::kPosted;
}

Result<Endpoint::Post> SimNetwork::post_recv(int at, int from, const Tag& tag,
                                             const OperationInfo& info, std::span<std::byte> data,
                                             Token token) {
  Lane& here = lane(at, from);
  const auto early = here.unexpected.find(tag);
  // What a rank sent before its goodbye can still be received.
  if (early == here.unexpected.end() || !here.left) {
    ISTHMUS_TRY(usable(at, from, "receive", data.size(), tag));
  }
  if (here.receives.contains(tag)) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("a receive from rank {} with operation {:#x} and message "
                                        "{} is posted already",
                                        from, tag.operation, tag.message)};
  }
  if (here.receives.size() >= config_.lane_posts_max) {
    return Endpoint::Post::kBusy;
  }
  here.used = true;
  here.cancelled.erase(tag.operation);
  const auto receive = here.receives.emplace(tag, Receive{data, info, token, 0}).first;
  if (early != here.unexpected.end()) {
    const std::uint64_t id = early->second;
    here.unexpected.erase(early);
    match(id, here, receive);
  }
  return Endpoint::Post::kPosted;
}

void SimNetwork::complete(int rank, int peer, const Tag& tag, const Completion& completion) {
  rank_state(rank).completions.push_back({peer, tag.operation, completion});
}

void SimNetwork::erase_message(std::uint64_t id) {
  const auto it = messages_.find(id);
  if (it->second.eager) {
    lane(it->second.from, it->second.to).eager_bytes -= it->second.bytes;
  }
  messages_.erase(it);
}

void SimNetwork::cancel(int rank, int peer, std::uint64_t operation) {
  Lane& here = lane(rank, peer);
  if (here.cancelled.insert(operation).second) {
    here.cancelled_order.push(operation);
    if (here.cancelled_order.size() > kCancelledMax) {
      here.cancelled.erase(here.cancelled_order.front());
      here.cancelled_order.pop();
    }
  }
  cancel_receives(rank, peer, operation);
  cancel_sends(rank, peer, operation);
  std::erase_if(rank_state(rank).completions, [&](const PendingCompletion& pending) {
    return pending.peer == peer && pending.operation == operation;
  });
}

void SimNetwork::cancel_receives(int rank, int peer, std::uint64_t operation) {
  Lane& here = lane(rank, peer);
  for (auto it = here.receives.lower_bound({operation, 0});
       it != here.receives.end() && it->first.operation == operation;) {
    if (it->second.message != 0) {
      Message& message = messages_.at(it->second.message);
      message.dropped = true;
      if (message.withdrawn) {
        erase_message(it->second.message);
      }
    }
    it = here.receives.erase(it);
  }
  for (auto it = here.unexpected.lower_bound({operation, 0});
       it != here.unexpected.end() && it->first.operation == operation;) {
    const std::uint64_t id = it->second;
    Message& message = messages_.at(id);
    if (message.eager || message.withdrawn) {
      erase_message(id);
    } else {
      message.dropped = true;
      transmit({.kind = Event::Kind::kClear, .rank = peer, .peer = rank, .message = id}, rank, peer,
               kControlBytes);
    }
    it = here.unexpected.erase(it);
  }
}

void SimNetwork::cancel_sends(int rank, int peer, std::uint64_t operation) {
  Lane& here = lane(rank, peer);
  Lane& there = lane(peer, rank);
  for (auto it = here.sends.lower_bound({operation, 0});
       it != here.sends.end() && it->first.operation == operation;) {
    const std::uint64_t id = it->second;
    Message& message = messages_.at(id);
    message.withdrawn = true;
    message.source = nullptr;
    const auto waiting = there.unexpected.find(it->first);
    if (waiting != there.unexpected.end() && waiting->second == id) {
      there.unexpected.erase(waiting);
      erase_message(id);
    } else if (message.dropped) {
      erase_message(id);
    }
    it = here.sends.erase(it);
  }
}

void SimNetwork::notify(int from, int to, const Notice& notice) {
  const Rank& self = rank_state(from);
  if (self.gone || self.left || lane(from, to).down) {
    return;
  }
  lane(from, to).used = true;
  std::shared_ptr<Notice> copy = std::make_shared<Notice>(notice);
  copy->from = from;
  copy->text.resize(std::min(copy->text.size(), kNoticeTextMax));
  const std::size_t bytes = kControlBytes + copy->text.size();
  transmit({.kind = Event::Kind::kNotice, .rank = to, .peer = from, .notice = std::move(copy)},
           from, to, bytes);
}

bool SimNetwork::poll(int rank, Events* events) {
  Rank& self = rank_state(rank);
  if (self.gone || self.left) {
    return false;
  }
  bool worked = false;
  while (!events_.empty() && events_.top().at_ns <= now_ns_) {
    worked = step() || worked;
  }
  const bool stalled = self.stalled_until_ns > now_ns_;
  const bool quiet = self.completions.empty() && self.notices.empty() && self.dead.empty();
  if (!worked && (stalled || quiet) && config_.auto_advance) {
    worked = idle(rank);
  }
  if (self.gone || self.stalled_until_ns > now_ns_) {
    return false;
  }
  for (const PendingCompletion& pending : self.completions) {
    events->completions.push_back(pending.completion);
    worked = true;
  }
  for (Notice& notice : self.notices) {
    events->notices.push_back(std::move(notice));
    worked = true;
  }
  for (const int peer : self.dead) {
    events->dead.push_back(peer);
    worked = true;
  }
  self.completions.clear();
  self.notices.clear();
  self.dead.clear();
  return worked;
}

// The clock moves when every rank has polled in vain, or this one twice: then whoever is driven at
// all has had its turn.
bool SimNetwork::idle(int rank) {
  const bool again = rank_state(rank).idle;
  rank_state(rank).idle = true;
  const bool all = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& other) {
    return other.idle || other.gone || other.left || !other.taken;
  });
  if (!again && !all) {
    return false;
  }
  for (Rank& other : ranks_) {
    other.idle = false;
  }
  return step();
}

}  // namespace isthmus
