#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace isthmus::store {

// What a TcpStore and its server say to each other; little-endian. A client sends one Hello and
// gets one back, then sends requests, one at a time: header, key, value. A reply carries its
// request's number, so that one that comes after its client gave up is told apart.
static_assert(std::endian::native == std::endian::little, "written as it lies in memory");

inline constexpr std::uint32_t kVersion = 1;

inline constexpr std::size_t kKeyBytesMax = 4096;
inline constexpr std::size_t kValueBytesMax = std::size_t{16} << 20;

// All keys and values together: a job of 100,000 ranks with 4 KiB each stays below.
inline constexpr std::size_t kStoreBytesMax = std::size_t{1} << 30;

// A world beyond this is not believed: bounds what a Hello can make the server allocate.
inline constexpr std::int32_t kWorldMax = 1 << 20;

struct Hello {
  std::array<char, 8> magic = {'i', 's', 't', 'h', 'k', 'v', 'r', 'z'};
  std::uint32_t version = kVersion;
  std::int32_t rank = -1;  // -1: not told
  std::int32_t world = 0;  // ranks of the job, 0: not told
  std::uint32_t reserved = 0;
};

static_assert(sizeof(Hello) == 24);

enum class Request : std::uint32_t { kSet = 1, kGet = 2, kAdd = 3, kMissing = 4 };

struct RequestHeader {
  std::uint32_t kind = 0;  // Request
  std::uint32_t number = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;  // of kAdd: 8, the amount
};

enum class Answer : std::uint32_t {
  kOk = 0,
  kMixed = 1,  // set() of a counter or add() to a value
  kFull = 2,   // the store holds kStoreBytesMax
};

struct ReplyHeader {
  std::uint32_t answer = 0;  // Answer
  std::uint32_t number = 0;
  std::uint32_t value_bytes = 0;
  std::uint32_t reserved = 0;
};

static_assert(sizeof(RequestHeader) == 16 && sizeof(ReplyHeader) == 16);

}  // namespace isthmus::store
