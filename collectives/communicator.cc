#include "collectives/communicator.h"

#include <utility>

#include "collectives/group.h"

namespace isthmus {

Communicator::Communicator(std::unique_ptr<Group> group) : group_(std::move(group)) {}

Communicator::~Communicator() = default;

int Communicator::rank() const {
  return static_cast<int>(group_->channel().rank);
}

int Communicator::size() const {
  return static_cast<int>(group_->channel().ranks());
}

std::string_view Communicator::name() const {
  return group_->channel().name;
}

std::span<const int> Communicator::world_ranks() const {
  return group_->channel().world_ranks;
}

const Topology& Communicator::topology() const {
  return group_->topology();
}

Status Communicator::run(const Call& call, const CallOptions& options) {
  return group_->run(call, options);
}

Result<WorkRef> Communicator::start(const Call& call, const CallOptions& options) {
  return group_->start(call, options);
}

Result<WorkRef> Communicator::start_send(const void* data, std::size_t bytes, int peer,
                                         std::uint32_t tag, const CallOptions& options) {
  return group_->start_message(
      {.is_recv = false, .peer = peer, .tag = tag, .data = data, .bytes = bytes}, options);
}

Result<WorkRef> Communicator::start_recv(void* data, std::size_t bytes, int peer, std::uint32_t tag,
                                         const CallOptions& options) {
  return group_->start_message(
      {.is_recv = true, .peer = peer, .tag = tag, .into = data, .bytes = bytes}, options);
}

Result<WorkRef> Communicator::start_recv_any(void* data, std::size_t bytes, std::uint32_t tag,
                                             const CallOptions& options) {
  return group_->start_message(
      {.is_recv = true, .peer = MessageCall::kAnySource, .tag = tag, .into = data, .bytes = bytes},
      options);
}

void Communicator::set_timeout_ms(std::int64_t timeout_ms) {
  group_->channel().timeout_ms.store(timeout_ms, std::memory_order_relaxed);
}

std::int64_t Communicator::timeout_ms() const {
  return group_->channel().timeout_ms.load(std::memory_order_relaxed);
}

std::uint64_t Communicator::sequence() const {
  return group_->channel().issued.load(std::memory_order_relaxed);
}

void Communicator::abort(std::string_view reason) {
  group_->abort(reason);
}

std::shared_ptr<const Error> Communicator::failure() const {
  return group_->failure();
}

std::string Communicator::algorithm_of(const Call& call) {
  return group_->algorithm_of(call);
}

void Communicator::force_algorithm(std::string_view name) {
  group_->force_algorithm(name);
}

}  // namespace isthmus
