// What happens in a SimNetwork when an event's time has come: deliveries, deaths, goodbyes.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "transport/sim/sim_network.h"

namespace isthmus {
namespace {

std::uint64_t operation_of(const Notice& notice) {
  return (std::uint64_t{notice.group} << 32) | notice.sequence;
}

}  // namespace

bool SimNetwork::step() {
  if (events_.empty()) {
    return false;
  }
  const Event event = events_.top();
  events_.pop();
  now_ns_ = std::max(now_ns_, event.at_ns);
  const Rank& at = rank_state(event.rank);
  if (event.kind == Event::Kind::kKill) {
    kill(event.rank);
  } else if (at.gone || at.left) {
    if (event.kind == Event::Kind::kArrive && messages_.at(event.message).eager) {
      erase_message(event.message);
    }
  } else if (at.stalled_until_ns > now_ns_) {
    postpone(event, at.stalled_until_ns);
  } else {
    run(event);
  }
  return true;
}

void SimNetwork::advance_to(std::int64_t at_ns) {
  while (!events_.empty() && events_.top().at_ns <= at_ns) {
    step();
  }
  now_ns_ = std::max(now_ns_, at_ns);
}

void SimNetwork::run(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kArrive:
      arrive(event);
      break;
    case Event::Kind::kClear:
      clear_to_send(event);
      break;
    case Event::Kind::kChunk:
      chunk(event);
      break;
    case Event::Kind::kSettle:
      settle(event, false);
      break;
    case Event::Kind::kRefuse:
      settle(event, true);
      break;
    case Event::Kind::kNotice:
      if (const Lane& here = lane(event.rank, event.peer);
          !here.down &&
          !(event.notice->peer_info && here.cancelled.contains(operation_of(*event.notice)))) {
        rank_state(event.rank).notices.push_back(*event.notice);
      }
      break;
    case Event::Kind::kGoodbye:
      if (Lane& here = lane(event.rank, event.peer); !here.down && !here.left) {
        here.left = true;
        fail_posted(event.rank, event.peer);
        rank_state(event.rank).notices.push_back(*event.notice);
      }
      break;
    case Event::Kind::kDeath:
      lose(event.rank, event.peer);
      break;
    case Event::Kind::kKill:
    case Event::Kind::kWake:
      break;
  }
}

void SimNetwork::arrive(const Event& event) {
  Message& message = messages_.at(event.message);
  Lane& here = lane(event.rank, event.peer);
  here.used = true;
  if (here.down || message.withdrawn) {
    erase_message(event.message);
    return;
  }
  if (here.cancelled.contains(message.tag.operation)) {
    if (message.eager) {
      erase_message(event.message);
      return;
    }
    message.dropped = true;
    transmit({.kind = Event::Kind::kClear,
              .rank = event.peer,
              .peer = event.rank,
              .message = event.message},
             event.rank, event.peer, kControlBytes);
    return;
  }
  const auto receive = here.receives.find(message.tag);
  if (receive == here.receives.end()) {
    here.unexpected.emplace(message.tag, event.message);
  } else {
    match(event.message, here, receive);
  }
}

void SimNetwork::match(std::uint64_t id, Lane& at,
                       std::map<Tag, Receive, TagLess>::iterator receive) {
  Message& message = messages_.at(id);
  Completion completion;
  completion.token = receive->second.token;
  completion.is_recv = true;
  completion.peer_info = message.info;
  if (message.bytes != receive->second.data.size()) {
    completion.failed = true;
    completion.code = Code::kMismatch;
    completion.peer_bytes = message.bytes;
    message.receive_bytes = receive->second.data.size();
  } else if (message.eager) {
    if (message.bytes > 0) {
      std::memcpy(receive->second.data.data(), message.copy.data(), message.bytes);
    }
    completion.bytes = message.bytes;
  } else {
    message.matched = true;
    receive->second.message = id;
    transmit({.kind = Event::Kind::kClear, .rank = message.from, .peer = message.to, .message = id},
             message.to, message.from, kControlBytes);
    return;
  }
  complete(message.to, message.from, message.tag, completion);
  if (completion.failed) {
    refuse(id, receive->second);
  }
  at.receives.erase(receive);
  if (message.eager) {
    erase_message(id);
  }
}

// Tells the sender of a mismatch: its send fails; of one that is long done, a notice tells.
void SimNetwork::refuse(std::uint64_t id, const Receive& receive) {
  const Message& message = messages_.at(id);
  Event event{
      .kind = Event::Kind::kRefuse, .rank = message.from, .peer = message.to, .message = id};
  if (message.eager) {
    std::shared_ptr<Notice> notice = std::make_shared<Notice>();
    notice->kind = Notice::Kind::kRefused;
    notice->group = static_cast<std::uint32_t>(message.tag.operation >> 32);
    notice->sequence = static_cast<std::uint32_t>(message.tag.operation);
    notice->from = message.to;
    notice->code = Code::kMismatch;
    notice->text = fmt::format(
        "rank {} expected {} bytes in message {} of operation {:#x} and got {} from rank {}",
        message.to, receive.data.size(), message.tag.message, message.tag.operation, message.bytes,
        message.from);
    notice->peer_info = receive.info;
    event.kind = Event::Kind::kNotice;
    event.notice = std::move(notice);
  }
  transmit(std::move(event), message.to, message.from, kControlBytes);
}

void SimNetwork::clear_to_send(const Event& event) {
  const auto it = messages_.find(event.message);
  if (it == messages_.end() || it->second.withdrawn) {
    return;
  }
  Message& message = it->second;
  const std::size_t size = config_.chunk_bytes;
  message.chunks_left = std::max<std::size_t>(1, (message.bytes + size - 1) / size);
  for (std::size_t i = 0; i < message.chunks_left; ++i) {
    transmit({.kind = Event::Kind::kChunk,
              .rank = message.to,
              .peer = message.from,
              .message = event.message,
              .offset = i * size},
             message.from, message.to, kControlBytes + std::min(size, message.bytes - i * size));
  }
}

void SimNetwork::chunk(const Event& event) {
  const auto it = messages_.find(event.message);
  if (it == messages_.end() || it->second.withdrawn) {
    return;
  }
  Message& message = it->second;
  Lane& here = lane(message.to, message.from);
  const auto receive = here.receives.find(message.tag);
  const std::size_t bytes = std::min(config_.chunk_bytes, message.bytes - event.offset);
  if (!message.dropped && bytes > 0) {
    ISTHMUS_CHECK(receive != here.receives.end(), "a chunk without its receive");
    std::memcpy(receive->second.data.data() + event.offset, message.source + event.offset, bytes);
  }
  if (--message.chunks_left > 0) {
    return;
  }
  if (!message.dropped) {
    Completion completion;
    completion.token = receive->second.token;
    completion.is_recv = true;
    completion.bytes = message.bytes;
    completion.peer_info = message.info;
    complete(message.to, message.from, message.tag, completion);
    here.receives.erase(receive);
  }
  transmit({.kind = Event::Kind::kSettle,
            .rank = message.from,
            .peer = message.to,
            .message = event.message},
           message.to, message.from, kControlBytes);
}

// The sender learns what became of its message.
void SimNetwork::settle(const Event& event, bool refused) {
  const auto it = messages_.find(event.message);
  if (it == messages_.end()) {
    return;
  }
  const Message& message = it->second;
  if (!message.withdrawn) {
    Completion completion;
    completion.token = message.sender;
    completion.failed = refused;
    completion.code = refused ? Code::kMismatch : Code::kInternal;
    completion.bytes = refused ? 0 : message.bytes;
    completion.peer_bytes = refused ? message.receive_bytes : 0;
    complete(message.from, message.to, message.tag, completion);
    lane(message.from, message.to).sends.erase(message.tag);
  }
  messages_.erase(it);
}

// Everything that a rank has posted to a peer fails: the peer is gone or has left.
void SimNetwork::fail_posted(int rank, int peer) {
  Lane& here = lane(rank, peer);
  for (const auto& [tag, receive] : here.receives) {
    Completion completion;
    completion.token = receive.token;
    completion.failed = true;
    completion.is_recv = true;
    completion.code = Code::kPeerDead;
    complete(rank, peer, tag, completion);
    if (receive.message != 0) {
      messages_.at(receive.message).dropped = true;
    }
  }
  here.receives.clear();
  for (const auto& [tag, id] : here.sends) {
    Message& message = messages_.at(id);
    Completion completion;
    completion.token = message.sender;
    completion.failed = true;
    completion.code = Code::kPeerDead;
    complete(rank, peer, tag, completion);
    message.withdrawn = true;
    message.source = nullptr;
  }
  here.sends.clear();
}

void SimNetwork::lose(int rank, int peer) {
  Lane& here = lane(rank, peer);
  if (here.down || here.left) {
    return;
  }
  here.down = true;
  fail_posted(rank, peer);
  for (const auto& [tag, id] : here.unexpected) {
    erase_message(id);
  }
  here.unexpected.clear();
  rank_state(rank).dead.push_back(peer);
}

// What a rank had posted goes with its memory; what was copied into the network still arrives.
void SimNetwork::forget_posted(int rank) {
  for (auto& [key, here] : lanes_) {
    if (key.first != rank) {
      continue;
    }
    for (const auto& [tag, id] : here.sends) {
      messages_.at(id).withdrawn = true;
      messages_.at(id).source = nullptr;
    }
    for (const auto& [tag, receive] : here.receives) {
      if (receive.message != 0) {
        messages_.at(receive.message).dropped = true;
      }
    }
    here.sends.clear();
    here.receives.clear();
  }
  Rank& self = rank_state(rank);
  self.completions.clear();
  self.notices.clear();
  self.dead.clear();
}

void SimNetwork::kill(int rank) {
  Rank& victim = rank_state(rank);
  if (victim.gone || victim.left) {
    return;
  }
  victim.gone = true;
  forget_posted(rank);
  for (int other = 0; other < config_.ranks; ++other) {
    if (other != rank) {
      schedule({.kind = Event::Kind::kDeath, .rank = other, .peer = rank},
               now_ns_ + config_.death_notice_ns);
    }
  }
}

void SimNetwork::kill_at(int rank, std::int64_t at_ns) {
  schedule({.kind = Event::Kind::kKill, .rank = rank}, at_ns);
}

void SimNetwork::stall(int rank, std::int64_t until_ns) {
  rank_state(rank).stalled_until_ns = until_ns;
  postpone({.kind = Event::Kind::kWake, .rank = rank}, until_ns);
}

void SimNetwork::disconnect(int a, int b) {
  schedule({.kind = Event::Kind::kDeath, .rank = a, .peer = b}, now_ns_);
  schedule({.kind = Event::Kind::kDeath, .rank = b, .peer = a}, now_ns_);
}

void SimNetwork::leave(int rank) {
  Rank& self = rank_state(rank);
  if (self.gone || self.left) {
    return;
  }
  for (int peer = 0; peer < config_.ranks; ++peer) {
    if (peer == rank) {
      continue;
    }
    const Lane& here = lane(rank, peer);
    Lane& there = lane(peer, rank);
    if (!here.used && !there.used) {
      there.left = true;  // never connected: the first post finds nobody
      continue;
    }
    std::shared_ptr<Notice> goodbye = std::make_shared<Notice>();
    goodbye->kind = Notice::Kind::kGoodbye;
    goodbye->from = rank;
    goodbye->culprit = rank;
    // Behind all that was sent: what a completed send carried is not lost.
    const std::int64_t at_ns = std::max(now_ns_ + here.link.latency_ns, here.last_arrival_ns + 1);
    schedule({.kind = Event::Kind::kGoodbye, .rank = peer, .peer = rank, .notice = goodbye}, at_ns);
  }
  forget_posted(rank);
  self.left = true;
}

}  // namespace isthmus
