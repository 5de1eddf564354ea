#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/endpoint.h"

namespace isthmus {

// One thing that a transport was asked or told.
struct TraceRecord {
  enum class Kind : std::uint8_t {
    kPostSend,
    kPostRecv,
    kCompletion,
    kCancel,
    kNoticeOut,
    kNoticeIn,
    kDead,
    kShutdown
  };

  enum class Answer : std::uint8_t { kPosted, kDone, kBusy, kError };

  std::int64_t at_ns = 0;
  Kind kind = Kind::kPostSend;
  Answer answer = Answer::kPosted;  // of a post
  Code code = Code::kInternal;      // of a failed post or completion, or of a notice
  bool failed = false;
  bool is_recv = false;          // of a completion
  std::uint8_t notice_kind = 0;  // Notice::Kind
  std::int32_t peer = -1;        // unknown to a completion: its post has the same token
  std::int32_t culprit = -1;     // of a notice
  Tag tag;                       // of a notice: group and sequence number
  std::uint64_t bytes = 0;
  Token token;
};

// The last `capacity` records. add() does not allocate.
// Thread rule: one thread at a time.
class TraceRing {
 public:
  // Rounded up to a power of two.
  TraceRing(int rank, std::size_t capacity);

  void add(const TraceRecord& record) {
    records_[static_cast<std::size_t>(added_) & (records_.size() - 1)] = record;
    ++added_;
  }

  std::size_t size() const;

  // Records that newer ones have overwritten.
  std::uint64_t lost() const { return added_ - size(); }

  // The i-th oldest.
  const TraceRecord& at(std::size_t i) const;

  // One JSON object a line, oldest first.
  std::string json_lines() const;

  // For chrome://tracing and Perfetto: a process per rank, a track per peer, a span from a post to
  // its completion.
  std::string chrome_trace() const;

  // Writes either text to a file, which is replaced.
  enum class Format : std::uint8_t { kJsonLines, kChrome };
  Status write(const std::string& path, Format format) const;

 private:
  std::vector<std::int64_t> matching_posts() const;
  void append_chrome(std::size_t i, std::int64_t post, std::string* text) const;

  int rank_;
  std::vector<TraceRecord> records_;  // size is a power of two
  std::uint64_t added_ = 0;
};

}  // namespace isthmus
