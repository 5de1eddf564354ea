#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "transport/endpoint.h"
#include "transport/tcp/wire.h"

namespace isthmus::tcp {

// What a lane remembers about messages: posts, early credits and what came unexpectedly. Objects
// come from free lists, so nothing is allocated once the number in flight has settled.
// Thread rule of all of it: the transport's.

// At most this many posts of each direction may wait on one lane; post_*() answers kBusy beyond.
inline constexpr std::size_t kPostsMax = 65536;

// One message that this rank sends.
struct Outgoing {
  enum class State : std::uint8_t {
    kCreditOnly,  // the receiver is ready, the message is not posted yet
    kEager,       // goes without asking
    kRequested,   // the receiver was asked; waits for its credit
    kBulk,        // has the credit; chunks go out in turn with those of other messages
  };

  Tag tag;
  Outgoing* hash_next = nullptr;
  State state = State::kEager;
  bool queued = false;       // in one of the lane's output queues
  std::uint32_t frames = 0;  // of it in the writer, not yet written
  std::uint32_t chunk = 0;   // number of the next chunk
  OperationInfo info;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t offset = 0;  // bytes that were put in frames
  Token token;
};

// One message that this rank receives.
struct Incoming {
  enum class State : std::uint8_t {
    kPosted,     // the buffer waits, or is being filled
    kRequested,  // the sender asked, the buffer is not posted yet
    kStoring,    // an eager message is being read into the pool
    kStored,     // a whole eager message waits in the pool
  };

  Tag tag;
  Incoming* hash_next = nullptr;
  State state = State::kPosted;
  bool credited = false;     // the sender was told to send
  bool posted = false;       // `data` and `token` are set; always so in kPosted
  std::uint32_t chunks = 0;  // received in sequence
  OperationInfo info;        // the receiver's own
  OperationInfo peer_info;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // of the buffer; of the message in kRequested
  std::size_t received = 0;
  std::size_t stored_bytes = 0;
  std::byte* stored = nullptr;  // block of the pool
  Token token;
};

// Objects of one type; freed ones are handed out again. Never shrinks.
template <typename T>
class ObjectPool {
 public:
  T* take() {
    if (free_.empty()) {
      return &all_.emplace_back();
    }
    T* object = free_.back();
    free_.pop_back();
    *object = T();
    return object;
  }

  void give_back(T* object) { free_.push_back(object); }

 private:
  std::deque<T> all_;
  std::vector<T*> free_;
};

// First in, first out. Grows by doubling and keeps its memory.
template <typename T>
class Fifo {
 public:
  bool empty() const { return count_ == 0; }

  std::size_t size() const { return count_; }

  T& front() { return slots_[first_]; }

  void push(T value) {
    if (count_ == slots_.size()) {
      grow();
    }
    slots_[(first_ + count_) & (slots_.size() - 1)] = std::move(value);
    ++count_;
  }

  T pop() {
    T value = std::move(slots_[first_]);
    slots_[first_] = T();
    first_ = (first_ + 1) & (slots_.size() - 1);
    --count_;
    return value;
  }

  // Drops what `unwanted` says; keeps the order of the rest.
  template <typename Unwanted>
  void drop_if(Unwanted&& unwanted) {
    for (std::size_t left = count_; left > 0; --left) {
      T value = pop();
      if (!unwanted(value)) {
        push(std::move(value));
      }
    }
  }

 private:
  void grow() {
    std::vector<T> more(slots_.size() * 2);
    for (std::size_t i = 0; i < count_; ++i) {
      more[i] = std::move(slots_[(first_ + i) & (slots_.size() - 1)]);
    }
    slots_ = std::move(more);
    first_ = 0;
  }

  std::vector<T> slots_ = std::vector<T>(16);  // a power of two, and it stays one
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

// Messages of one lane and direction by tag. T has `tag` and `hash_next`. Owns nothing.
template <typename T>
class TagTable {
 public:
  T* find(const Tag& tag) const {
    T* entry = buckets_[bucket(tag)];
    while (entry != nullptr && !(entry->tag == tag)) {
      entry = entry->hash_next;
    }
    return entry;
  }

  void insert(T* entry) {
    if (size_ == buckets_.size()) {
      grow();
    }
    T*& head = buckets_[bucket(entry->tag)];
    entry->hash_next = head;
    head = entry;
    ++size_;
  }

  void erase(T* entry) {
    T** at = &buckets_[bucket(entry->tag)];
    while (*at != nullptr && *at != entry) {
      at = &(*at)->hash_next;
    }
    ISTHMUS_CHECK(*at == entry, "the message is not in its table");
    *at = entry->hash_next;
    entry->hash_next = nullptr;
    --size_;
  }

  // All entries, for walks that change the table.
  std::vector<T*> entries() const {
    std::vector<T*> out;
    out.reserve(size_);
    for (T* entry : buckets_) {
      for (; entry != nullptr; entry = entry->hash_next) {
        out.push_back(entry);
      }
    }
    return out;
  }

  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kBucketsLeast = 64;  // a power of two, and it stays one

  std::size_t bucket(const Tag& tag) const {
    return mix64(tag.operation * 31 + tag.message) & (buckets_.size() - 1);
  }

  void grow() {
    const std::vector<T*> all = entries();
    buckets_.assign(buckets_.size() * 2, nullptr);
    size_ = 0;
    for (T* entry : all) {
      T*& head = buckets_[bucket(entry->tag)];
      entry->hash_next = head;
      head = entry;
      ++size_;
    }
  }

  std::vector<T*> buckets_ = std::vector<T*>(kBucketsLeast, nullptr);
  std::size_t size_ = 0;
};

// Memory for eager messages that came before their buffer: three sizes of blocks, whose sum per
// peer is bounded by kEagerQuota (eager_cost() counts the same sizes).
class BlockPool {
 public:
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* block, std::size_t bytes);

 private:
  static constexpr std::array<std::size_t, 3> kSizes = {128, 1024, kEagerBytes};

  static std::size_t size_class(std::size_t bytes);

  std::vector<std::unique_ptr<std::byte[]>> all_;
  std::array<std::vector<std::byte*>, kSizes.size()> free_;
};

// The last kRemembered operations that were cancelled on a lane: their late data is dropped.
class CancelledOperations {
 public:
  static constexpr std::size_t kRemembered = 1024;

  void add(std::uint64_t operation);
  // A post of a cancelled operation revives it.
  void remove(std::uint64_t operation);

  bool contains(std::uint64_t operation) const { return !set_.empty() && set_.contains(operation); }

 private:
  std::unordered_set<std::uint64_t> set_;
  std::deque<std::uint64_t> order_;  // may name removed ones; at most kRemembered
};

}  // namespace isthmus::tcp
