#include "transport/trace/trace_transport.h"

#include <utility>

namespace isthmus {

TraceTransport::TraceTransport(std::unique_ptr<Transport> inner, int rank, std::size_t records,
                               std::function<std::int64_t()> clock)
    : inner_(std::move(inner)), ring_(rank, records), clock_(std::move(clock)) {}

TraceTransport::~TraceTransport() = default;

void TraceTransport::record_post(TraceRecord::Kind kind, int peer, const Tag& tag,
                                 std::size_t bytes, Token token,
                                 const Result<Endpoint::Post>& answer) {
  TraceRecord record;
  record.at_ns = clock_();
  record.kind = kind;
  record.peer = peer;
  record.tag = tag;
  record.bytes = bytes;
  record.token = token;
  if (!answer.ok()) {
    record.answer = TraceRecord::Answer::kError;
    record.failed = true;
    record.code = answer.error().code;
  } else if (*answer == Endpoint::Post::kDone) {
    record.answer = TraceRecord::Answer::kDone;
  } else if (*answer == Endpoint::Post::kBusy) {
    record.answer = TraceRecord::Answer::kBusy;
  }
  ring_.add(record);
}

void TraceTransport::record_cancel(int peer, std::uint64_t operation) {
  TraceRecord record;
  record.at_ns = clock_();
  record.kind = TraceRecord::Kind::kCancel;
  record.peer = peer;
  record.tag.operation = operation;
  ring_.add(record);
}

void TraceTransport::record_notice(TraceRecord::Kind kind, int peer, const Notice& notice) {
  TraceRecord record;
  record.at_ns = clock_();
  record.kind = kind;
  record.peer = peer;
  record.code = notice.code;
  record.culprit = notice.culprit;
  record.notice_kind = static_cast<std::uint8_t>(notice.kind);
  record.tag = {notice.group, notice.sequence};
  ring_.add(record);
}

Endpoint& TraceTransport::endpoint(int peer) {
  std::unique_ptr<TraceEndpoint>& slot = endpoints_[peer];
  if (!slot) {
    slot = std::make_unique<TraceEndpoint>(this, &inner_->endpoint(peer), peer);
  }
  return *slot;
}

bool TraceTransport::poll(Events* events) {
  const std::size_t completions = events->completions.size();
  const std::size_t notices = events->notices.size();
  const std::size_t dead = events->dead.size();
  const bool worked = inner_->poll(events);
  for (std::size_t i = completions; i < events->completions.size(); ++i) {
    const Completion& completion = events->completions[i];
    TraceRecord record;
    record.at_ns = clock_();
    record.kind = TraceRecord::Kind::kCompletion;
    record.failed = completion.failed;
    record.code = completion.code;
    record.is_recv = completion.is_recv;
    record.bytes = completion.bytes;
    record.token = completion.token;
    ring_.add(record);
  }
  for (std::size_t i = notices; i < events->notices.size(); ++i) {
    record_notice(TraceRecord::Kind::kNoticeIn, events->notices[i].from, events->notices[i]);
  }
  for (std::size_t i = dead; i < events->dead.size(); ++i) {
    TraceRecord record;
    record.at_ns = clock_();
    record.kind = TraceRecord::Kind::kDead;
    record.peer = events->dead[i];
    ring_.add(record);
  }
  return worked;
}

void TraceTransport::notify(int peer, const Notice& notice) {
  record_notice(TraceRecord::Kind::kNoticeOut, peer, notice);
  inner_->notify(peer, notice);
}

void TraceTransport::shutdown() {
  TraceRecord record;
  record.at_ns = clock_();
  record.kind = TraceRecord::Kind::kShutdown;
  ring_.add(record);
  inner_->shutdown();
}

Result<Endpoint::Post> TraceEndpoint::post_send(const Tag& tag, const OperationInfo& info,
                                                std::span<const std::byte> data, Token token) {
  Result<Post> answer = inner_->post_send(tag, info, data, token);
  transport_->record_post(TraceRecord::Kind::kPostSend, peer_, tag, data.size(), token, answer);
  return answer;
}

Result<Endpoint::Post> TraceEndpoint::post_recv(const Tag& tag, const OperationInfo& info,
                                                std::span<std::byte> data, Token token) {
  Result<Post> answer = inner_->post_recv(tag, info, data, token);
  transport_->record_post(TraceRecord::Kind::kPostRecv, peer_, tag, data.size(), token, answer);
  return answer;
}

bool TraceEndpoint::offers(const Tag& tag) const {
  return inner_->offers(tag);
}

void TraceEndpoint::cancel(std::uint64_t operation) {
  transport_->record_cancel(peer_, operation);
  inner_->cancel(operation);
}

}  // namespace isthmus
