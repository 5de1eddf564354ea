// Goal: a temporary folder is new, private, and gone at the end, but not by a child's hand. Method:
// looks at the file system.

#include "base/temp_folder.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace isthmus {
namespace {

namespace fs = std::filesystem;

TEST(TempFolder, IsPrivateAndEndsWithItsContents) {
  std::optional<TempFolder> folder = TempFolder::create("base-test").value();
  const std::string path = folder->path();
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
  EXPECT_NE(path, TempFolder::create("base-test")->path());
  std::ofstream(path + "/file") << "text";
  TempFolder moved = std::move(*folder);
  folder.reset();
  EXPECT_TRUE(fs::exists(path + "/file"));
  moved.remove();
  EXPECT_TRUE(moved.path().empty());
  EXPECT_FALSE(fs::exists(path));
}

TEST(TempFolder, StaysWhenAForkedChildEnds) {
  std::optional<TempFolder> folder = TempFolder::create("base-test").value();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    folder.reset();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs::exists(folder->path()));
}

}  // namespace
}  // namespace isthmus
