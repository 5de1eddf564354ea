#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "transport/endpoint.h"

namespace isthmus {

// What the lanes of every backend remember messages in: pools, queues, tables by tag. Objects come
// from free lists, so nothing is allocated once the number in flight has settled.
// Thread rule of all of it: the transport's.

// At most this many posts of each direction may wait on one lane; post_*() answers kBusy beyond.
inline constexpr std::size_t kPostsMax = 65536;

// A message of at most this many bytes is sent without asking.
inline constexpr std::size_t kEagerBytes = 8192;

// No message is larger: a length beyond is a broken frame.
inline constexpr std::uint64_t kMessageBytesMax = std::uint64_t{1} << 48;

// What one eager message takes from the quota: what the receiver's BlockPool sets aside for it.
std::uint64_t eager_cost(std::size_t payload_bytes);

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
// peer is bounded by the backend's quota (eager_cost() counts the same sizes).
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

}  // namespace isthmus
