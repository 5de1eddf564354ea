// Goal: every Rendezvous of ours keeps rendezvous.h's contract. Method: one suite over the memory,
// file and TCP stores; ranks are threads with a handle each.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/temp_folder.h"
#include "transport/file_store.h"
#include "transport/memory_store.h"
#include "transport/tcp_store.h"

namespace isthmus {
namespace {

Deadline soon() {
  return Deadline::after_ms(30'000);
}

// A place where ranks meet; client(i) is rank i's handle, used by one thread at a time.
class Space {
 public:
  virtual ~Space() = default;
  virtual Rendezvous& client(std::size_t rank) = 0;
};

class MemorySpace final : public Space {
 public:
  Rendezvous& client(std::size_t /*rank*/) override { return store_; }

 private:
  MemoryStore store_;
};

class FileSpace final : public Space {
 public:
  FileSpace() {
    for (std::unique_ptr<FileStore>& store : stores_) {
      store = std::move(FileStore::create(directory())).value();
    }
  }

  Rendezvous& client(std::size_t rank) override { return *stores_.at(rank); }

  std::string directory() const { return folder_.path() + "/job"; }

 private:
  TempFolder folder_ = TempFolder::create("store-test").value();
  std::array<std::unique_ptr<FileStore>, 8> stores_;
};

class TcpSpace final : public Space {
 public:
  TcpSpace() {
    stores_[0] = std::move(TcpStore::serve("127.0.0.1", 0, soon())).value();
    for (std::size_t i = 1; i < stores_.size(); ++i) {
      stores_[i] = std::move(TcpStore::connect("127.0.0.1", stores_[0]->port(), soon())).value();
    }
  }

  Rendezvous& client(std::size_t rank) override { return *stores_.at(rank); }

 private:
  std::array<std::unique_ptr<TcpStore>, 8> stores_;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Space>()> make;
};

class Stores : public ::testing::TestWithParam<Kind> {
 protected:
  Stores() : space_(GetParam().make()) {}

  std::unique_ptr<Space> space_;
};

TEST_P(Stores, SetThenGet) {
  ASSERT_TRUE(space_->client(0).set("key", "value").ok());
  EXPECT_EQ(*space_->client(1).get("key", soon()), "value");
  EXPECT_EQ(*space_->client(0).get("key", soon()), "value");
}

TEST_P(Stores, TheLastSetWins) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(space_->client(0).set("key", std::to_string(i)).ok());
    EXPECT_EQ(*space_->client(1).get("key", soon()), std::to_string(i));
  }
}

TEST_P(Stores, KeysAndValuesAreBytes) {
  std::string all;
  for (int c = 0; c < 256; ++c) {
    all += static_cast<char>(c);
  }
  const std::vector<std::string> keys = {"",
                                         "a/b/../c",
                                         ".",
                                         "..",
                                         "A",
                                         "a",
                                         "%41",
                                         std::string("nul\0key", 7),
                                         all,
                                         "v",
                                         "c.x.1",
                                         "c.x.",
                                         "v.a",
                                         std::string(300, 'k'),
                                         std::string(301, 'k')};
  for (const std::string& key : keys) {
    ASSERT_TRUE(space_->client(0).set(key, all + key).ok()) << key;
  }
  for (const std::string& key : keys) {
    EXPECT_EQ(*space_->client(1).get(key, soon()), all + key) << key;
  }
  ASSERT_TRUE(space_->client(2).set("empty", "").ok());
  EXPECT_EQ(*space_->client(3).get("empty", soon()), "");
}

TEST_P(Stores, LargeValue) {
  std::string value(std::size_t{8} << 20, 'x');
  for (std::size_t i = 0; i < value.size(); i += 4096) {
    value[i] = static_cast<char>(i >> 12);
  }
  ASSERT_TRUE(space_->client(0).set("large", value).ok());
  EXPECT_TRUE(*space_->client(1).get("large", soon()) == value);
}

TEST_P(Stores, GetWaitsForASetToCome) {
  for (int round = 0; round < 20; ++round) {
    const std::string key = "round" + std::to_string(round);
    std::string got;
    std::thread waiter([&] { got = space_->client(1).get(key, soon()).value(); });
    ASSERT_TRUE(space_->client(0).set(key, key + "!").ok());
    waiter.join();
    EXPECT_EQ(got, key + "!");
  }
}

TEST_P(Stores, ManyWaitForOneKey) {
  std::array<std::string, 8> got;
  std::vector<std::thread> waiters;
  for (std::size_t rank = 1; rank < got.size(); ++rank) {
    waiters.emplace_back([&, rank] {
      EXPECT_TRUE(space_->client(rank).add("waiting", 1).ok());
      got[rank] = space_->client(rank).get("go", soon()).value();
    });
  }
  while (space_->client(0).add("waiting", 0).value() < 7) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(space_->client(0).set("go", "now").ok());
  for (std::thread& each : waiters) {
    each.join();
  }
  for (std::size_t rank = 1; rank < got.size(); ++rank) {
    EXPECT_EQ(got[rank], "now");
  }
}

TEST_P(Stores, TimeoutNamesTheKey) {
  const std::int64_t begin_ns = monotonic_ns();
  const Result<std::string> got = space_->client(1).get("nobody/sets-this", Deadline::after_ms(60));
  const std::int64_t took_ms = (monotonic_ns() - begin_ns) / 1'000'000;
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, Code::kTimeout);
  EXPECT_NE(got.error().message.find("nobody/sets-this"), std::string::npos);
  EXPECT_GE(took_ms, 60);
  EXPECT_LT(took_ms, 5000);
  // The store is as good as before.
  ASSERT_TRUE(space_->client(0).set("nobody/sets-this", "late").ok());
  EXPECT_EQ(*space_->client(1).get("nobody/sets-this", soon()), "late");
}

TEST_P(Stores, CountersAddUp) {
  EXPECT_EQ(*space_->client(0).add("n", 0), 0);
  EXPECT_EQ(*space_->client(1).add("n", 5), 5);
  EXPECT_EQ(*space_->client(2).add("n", -7), -2);
  EXPECT_EQ(*space_->client(0).add("m", 1), 1);
  EXPECT_EQ(*space_->client(3).get("n", soon()), "-2");
}

TEST_P(Stores, CountersAreAtomic) {
  constexpr std::size_t kRanks = 8;
  constexpr int kAdds = 40;
  std::array<std::vector<std::int64_t>, kRanks> sums;
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int i = 0; i < kAdds; ++i) {
        sums[rank].push_back(space_->client(rank).add("counter", 1).value());
      }
    });
  }
  for (std::thread& each : ranks) {
    each.join();
  }
  std::set<std::int64_t> distinct;
  for (const std::vector<std::int64_t>& each : sums) {
    EXPECT_TRUE(std::is_sorted(each.begin(), each.end()));
    distinct.insert(each.begin(), each.end());
  }
  EXPECT_EQ(distinct.size(), kRanks * kAdds);
  EXPECT_EQ(*distinct.begin(), 1);
  EXPECT_EQ(*distinct.rbegin(), static_cast<std::int64_t>(kRanks) * kAdds);
}

TEST_P(Stores, AValueIsNoCounter) {
  ASSERT_TRUE(space_->client(0).set("value", "1").ok());
  ASSERT_TRUE(space_->client(0).add("counter", 1).ok());
  const Result<std::int64_t> add = space_->client(1).add("value", 1);
  ASSERT_FALSE(add.ok());
  EXPECT_EQ(add.error().code, Code::kInvalidArgument);
  EXPECT_NE(add.error().message.find("value"), std::string::npos);
  const Status set = space_->client(1).set("counter", "x");
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().code, Code::kInvalidArgument);
  EXPECT_EQ(*space_->client(1).get("value", soon()), "1");
  EXPECT_EQ(*space_->client(1).get("counter", soon()), "1");
}

// The pattern of start-up: all set their own key, then read all others'.
TEST_P(Stores, EveryoneReadsEveryone) {
  std::vector<std::thread> ranks;
  std::array<int, 8> right{};
  for (std::size_t rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&, rank] {
      EXPECT_TRUE(space_->client(rank)
                      .set("card/" + std::to_string(rank), std::to_string(rank * rank))
                      .ok());
      for (std::size_t other = 0; other < 8; ++other) {
        const Result<std::string> got =
            space_->client(rank).get("card/" + std::to_string(other), soon());
        right[rank] += got.ok() && *got == std::to_string(other * other) ? 1 : 0;
      }
    });
  }
  for (std::thread& each : ranks) {
    each.join();
  }
  for (const int each : right) {
    EXPECT_EQ(each, 8);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Stores,
    ::testing::Values(Kind{"memory", [] { return std::make_unique<MemorySpace>(); }},
                      Kind{"file", [] { return std::make_unique<FileSpace>(); }},
                      Kind{"tcp", [] { return std::make_unique<TcpSpace>(); }}),
    [](const ::testing::TestParamInfo<Kind>& param) { return param.param.name; });

TEST(FileStore, LeavesNoTemporaryFiles) {
  FileSpace space;
  ASSERT_TRUE(space.client(0).set("a", "1").ok());
  ASSERT_TRUE(space.client(0).add("n", 1).ok());
  ASSERT_TRUE(space.client(1).add("n", 1).ok());
  for (const auto& entry : std::filesystem::directory_iterator(space.directory())) {
    EXPECT_NE(entry.path().filename().string().substr(0, 2), "t.") << entry.path();
  }
}

// Over NFS a file may be seen before its bytes are: it counts as absent.
TEST(FileStore, HalfAFileIsNoFile) {
  FileSpace space;
  ASSERT_TRUE(space.client(0).set("key", "a value of some length").ok());
  const std::string path = space.directory() + "/v.key";
  const std::uintmax_t size = std::filesystem::file_size(path);
  for (const std::uintmax_t left : {std::uintmax_t{0}, std::uintmax_t{10}, size - 1}) {
    std::filesystem::resize_file(path, left);
    const Result<std::string> got = space.client(1).get("key", Deadline::after_ms(5));
    ASSERT_FALSE(got.ok()) << left;
    EXPECT_EQ(got.error().code, Code::kTimeout);
  }
  ASSERT_TRUE(space.client(0).set("key", "whole").ok());
  EXPECT_EQ(*space.client(1).get("key", soon()), "whole");
}

TEST(FileStore, StrangersFilesDoNotMatter) {
  FileSpace space;
  for (const char* name : {"/t.1.2.3", "/notes.txt", "/c.n.x"}) {
    EXPECT_TRUE(std::filesystem::create_directory(space.directory() + name));
  }
  EXPECT_EQ(*space.client(0).add("n", 3), 3);
  EXPECT_TRUE(std::filesystem::exists(space.directory() + "/t.1.2.3"));
}

TEST(FileStore, RefusesAPathThatIsNoDirectory) {
  const Result<std::unique_ptr<FileStore>> file = FileStore::create("/dev/null");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::kInvalidArgument);
  EXPECT_NE(file.error().message.find("/dev/null"), std::string::npos);
  const Result<std::unique_ptr<FileStore>> orphan =
      FileStore::create("/tmp/isthmus-no-such-parent/job");
  ASSERT_FALSE(orphan.ok());
  EXPECT_NE(orphan.error().message.find("parent"), std::string::npos);
}

}  // namespace
}  // namespace isthmus
