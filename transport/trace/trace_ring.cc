#include "transport/trace/trace_ring.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <deque>
#include <map>
#include <string_view>
#include <tuple>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/fd.h"

namespace isthmus {
namespace {

constexpr std::array<std::string_view, 8> kKinds = {"post_send", "post_recv",  "completion",
                                                    "cancel",    "notice_out", "notice_in",
                                                    "dead",      "shutdown"};
constexpr std::array<std::string_view, 4> kAnswers = {"posted", "done", "busy", "error"};

std::string_view kind_name(const TraceRecord& record) {
  return kKinds[static_cast<std::size_t>(record.kind)];
}

bool is_post(const TraceRecord& record) {
  return record.kind == TraceRecord::Kind::kPostSend || record.kind == TraceRecord::Kind::kPostRecv;
}

bool is_notice(const TraceRecord& record) {
  return record.kind == TraceRecord::Kind::kNoticeIn ||
         record.kind == TraceRecord::Kind::kNoticeOut;
}

// A token and a direction: what a completion and its post have in common.
using Key = std::tuple<void*, std::uint32_t, bool>;

std::string microseconds(std::int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

}  // namespace

TraceRing::TraceRing(int rank, std::size_t capacity)
    : rank_(rank), records_(std::bit_ceil(std::max<std::size_t>(capacity, 1))) {}

std::size_t TraceRing::size() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(added_, records_.size()));
}

const TraceRecord& TraceRing::at(std::size_t i) const {
  return records_[static_cast<std::size_t>(lost() + i) & (records_.size() - 1)];
}

// For each record the index of the post that it completes, -1 where there is none (any more).
// Posts with equal tokens are taken in their order.
std::vector<std::int64_t> TraceRing::matching_posts() const {
  std::map<Key, std::deque<std::size_t>> open;
  std::vector<std::int64_t> posts(size(), -1);
  for (std::size_t i = 0; i < size(); ++i) {
    const TraceRecord& record = at(i);
    const bool is_recv = record.kind == TraceRecord::Kind::kPostRecv || record.is_recv;
    const Key key{record.token.owner, record.token.step, is_recv};
    if (is_post(record) && record.answer == TraceRecord::Answer::kPosted) {
      open[key].push_back(i);
    } else if (record.kind == TraceRecord::Kind::kCancel) {
      for (auto& [other, indices] : open) {
        std::erase_if(indices, [&](std::size_t index) {
          return at(index).peer == record.peer && at(index).tag.operation == record.tag.operation;
        });
      }
    } else if (record.kind == TraceRecord::Kind::kCompletion) {
      std::deque<std::size_t>& indices = open[key];
      if (!indices.empty()) {
        posts[i] = static_cast<std::int64_t>(indices.front());
        indices.pop_front();
      }
    }
  }
  return posts;
}

std::string TraceRing::json_lines() const {
  const std::vector<std::int64_t> posts = matching_posts();
  std::string text;
  for (std::size_t i = 0; i < size(); ++i) {
    const TraceRecord& record = at(i);
    const TraceRecord& post = posts[i] < 0 ? record : at(static_cast<std::size_t>(posts[i]));
    text += fmt::format(R"({{"rank":{},"at_ns":{},"event":"{}","peer":{})", rank_, record.at_ns,
                        kind_name(record), post.peer);
    if (is_post(record)) {
      text += fmt::format(R"(,"answer":"{}")", kAnswers[static_cast<std::size_t>(record.answer)]);
    }
    if (record.kind == TraceRecord::Kind::kCompletion) {
      text += fmt::format(R"(,"direction":"{}")", record.is_recv ? "recv" : "send");
    }
    if (is_post(record) || posts[i] >= 0 || record.kind == TraceRecord::Kind::kCancel) {
      text += fmt::format(R"(,"operation":{},"message":{})", post.tag.operation, post.tag.message);
    }
    if (is_post(record) || record.kind == TraceRecord::Kind::kCompletion) {
      text += fmt::format(R"(,"bytes":{})", record.bytes);
    }
    if (posts[i] >= 0) {
      text += fmt::format(R"(,"took_ns":{})", record.at_ns - post.at_ns);
    }
    if (record.failed) {
      text += fmt::format(R"(,"failed":"{}")", code_name(record.code));
    }
    if (is_notice(record)) {
      text +=
          fmt::format(R"(,"notice":{},"culprit":{},"group":{},"sequence":{})", record.notice_kind,
                      record.culprit, record.tag.operation, record.tag.message);
    }
    text += "}\n";
  }
  return text;
}

void TraceRing::append_chrome(std::size_t i, std::int64_t post, std::string* text) const {
  const TraceRecord& record = at(i);
  const std::string failed =
      record.failed ? fmt::format(R"(,"failed":"{}")", code_name(record.code)) : "";
  if (post >= 0) {
    const TraceRecord& begin = at(static_cast<std::size_t>(post));
    const std::string common =
        fmt::format(R"("name":"{} {} B","cat":"transport","id":{},"pid":{},"tid":{})",
                    record.is_recv ? "recv" : "send", begin.bytes,
                    lost() + static_cast<std::uint64_t>(post), rank_, begin.peer);
    *text += fmt::format(R"({{"ph":"b",{},"ts":{},"args":{{"operation":{},"message":{}{}}}}},)"
                         "\n",
                         common, microseconds(begin.at_ns), begin.tag.operation, begin.tag.message,
                         failed);
    *text += fmt::format(R"({{"ph":"e",{},"ts":{}}},)"
                         "\n",
                         common, microseconds(record.at_ns));
  } else if (!is_post(record) || record.answer != TraceRecord::Answer::kPosted) {
    *text += fmt::format(
        R"({{"ph":"i","s":"t","name":"{}{}{}","cat":"transport","pid":{},"tid":{},"ts":{},)"
        R"("args":{{"operation":{},"message":{},"bytes":{}{}}}}},)"
        "\n",
        kind_name(record), is_post(record) ? " " : "",
        is_post(record) ? kAnswers[static_cast<std::size_t>(record.answer)] : "", rank_,
        record.peer, microseconds(record.at_ns), record.tag.operation, record.tag.message,
        record.bytes, failed);
  }
}

std::string TraceRing::chrome_trace() const {
  const std::vector<std::int64_t> posts = matching_posts();
  std::string text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  for (std::size_t i = 0; i < size(); ++i) {
    append_chrome(i, posts[i], &text);
  }
  text += fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}})"
                      "\n]}}\n",
                      rank_, rank_);
  return text;
}

Status TraceRing::write(const std::string& path, Format format) const {
  const std::string text = format == Format::kChrome ? chrome_trace() : json_lines();
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return system_error(Code::kIo, errno, fmt::format("cannot open trace file {}", path));
  }
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t written = ::write(fd.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return system_error(Code::kIo, written < 0 ? errno : EIO,
                          fmt::format("cannot write trace file {}", path));
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace isthmus
