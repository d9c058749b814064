// SPDX-License-Identifier: Apache-2.0
#include <list>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>
#include <zip.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "files/array_formats.h"
#include "files/file.h"
#include "files/npy.h"
#include "files/zip_length.h"

namespace qkv::app {
namespace {

constexpr std::string_view kSuffix = ".npy";
constexpr std::string_view kCheckpoint = "/data.pkl";  // a member that torch.save writes
// 1980-01-01, the earliest date in an archive. With a fixed date, the same arrays give the same
// bytes.
constexpr zip_uint16_t kFirstDay = 1 << 5 | 1;

struct Discard {
  void operator()(zip_t* archive) const noexcept { zip_discard(archive); }
  void operator()(zip_file_t* file) const noexcept { zip_fclose(file); }
};
using Archive = std::unique_ptr<zip_t, Discard>;
using Member = std::unique_ptr<zip_file_t, Discard>;

std::string message_of(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string message = zip_error_strerror(&error);
  zip_error_fini(&error);
  return message;
}

// ---- writing --------------------------------------------------------------------------------

// Adds one member, whose bytes must stay in `image` until the archive is closed. Returns false if
// libzip fails.
bool add_member(zip_t* archive, const std::string& name, const files::NpyImage& image,
                Compression compression) {
  // The cast from const is safe, since libzip only reads the bytes.
  const auto bytes = [](const void* data) {
    return static_cast<zip_uint8_t*>(const_cast<void*>(data));
  };
  const zip_buffer_fragment_t pieces[] = {
      {bytes(image.header().data()), image.header().size()},
      {bytes(image.data()), image.data_size()},
  };
  zip_source_t* source = zip_source_buffer_fragment(archive, pieces, image.data_size() ? 2 : 1, 0);
  if (source == nullptr) return false;
  const zip_int64_t index =
      zip_file_add(archive, (name + std::string(kSuffix)).c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    return false;
  }
  const auto place = static_cast<zip_uint64_t>(index);
  const zip_int32_t method = compression == Compression::kStored ? ZIP_CM_STORE : ZIP_CM_DEFLATE;
  return zip_set_file_compression(archive, place, method, 0) == 0 &&
         zip_file_set_dostime(archive, place, 0, kFirstDay, 0) == 0;
}

// ---- reading --------------------------------------------------------------------------------

zip_t* open_whole(const std::string& whole, int flags, int& code) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(whole.data(), whole.size(), 0, &error);
  zip_t* archive = source == nullptr ? nullptr : zip_open_from_source(source, flags, &error);
  if (archive == nullptr) zip_source_free(source);
  code = zip_error_code_zip(&error);
  zip_error_fini(&error);
  return archive;
}

// Throws InputError if the archive is known to be truncated. `whole` holds the bytes of a pipe.
void check_length(files::InputFile& file, const std::string& whole) {
  const Index size = file.size().value_or(std::ssize(whole));
  const files::Descriptor copy(file.size() ? file.duplicate() : -1);
  const auto read = [&](Index offset, void* target, std::size_t bytes) -> std::size_t {
    if (offset >= size) return 0;
    if (!copy.is_open()) {
      return whole.copy(static_cast<char*>(target), bytes, static_cast<std::size_t>(offset));
    }
    const ssize_t got = ::pread(copy.get(), target, bytes, offset);
    return got < 0 ? 0 : static_cast<std::size_t>(got);
  };
  const auto least = files::least_zip_length(read, size);
  if (!least) return;
  throw InputError(file.name(),
                   fmt::format("{}expected an .npz archive of at least {} bytes, got {}",
                               files::kTruncated, *least, size));
}

// Opens a file as an archive; a pipe is first read into `whole`.
Archive open_archive(files::InputFile& file, std::string& whole) {
  constexpr int kFlags = ZIP_RDONLY | ZIP_CHECKCONS;
  int code = 0;
  Archive archive;
  if (file.size()) {
    const int copy = file.duplicate();  // libzip closes it
    archive.reset(zip_fdopen(copy, kFlags, &code));
    if (!archive) files::Descriptor(copy).close();
  } else {
    whole = file.read_rest();
    archive.reset(open_whole(whole, kFlags, code));
  }
  if (!archive) {
    check_length(file, whole);
    if (code == ZIP_ER_EXISTS) {
      throw InputError(file.name(), "expected an .npz archive, got two members of one name");
    }
    // The file starts like an archive, so most likely it is truncated.
    throw InputError(
        file.name(),
        fmt::format("expected an .npz archive: {} (truncated .npz archive?)", message_of(code)));
  }
  return archive;
}

// Whether a member can have the size that it claims. Deflate needs at least one bit for 258 bytes
// (RFC 1951 section 3.2.5): a member that claims more is malformed, and memory must not be
// allocated for it.
bool is_possible(const zip_stat_t& member) {
  constexpr zip_uint64_t kMostPerByte = zip_uint64_t{8} * 258;
  if (member.comp_method == ZIP_CM_STORE) return member.size == member.comp_size;
  return member.comp_method == ZIP_CM_DEFLATE && member.size / kMostPerByte <= member.comp_size;
}

NamedArray read_member(const files::InputFile& file, zip_t* archive, const zip_stat_t& status,
                       const std::string& name) {
  if (!is_possible(status)) {
    throw InputError(name, fmt::format("expected a stored or deflated member, got {} bytes that "
                                       "claim to hold {} (method {})",
                                       status.comp_size, status.size, status.comp_method));
  }
  const Member member(zip_fopen_index(archive, status.index, 0));
  if (!member) throw InputError(name, zip_strerror(archive));
  files::ByteSource source{.name = name, .size = static_cast<Index>(status.size)};
  source.read = [&](void* target, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
      file.check_stop();
      constexpr std::size_t kBlock = std::size_t{1} << 20;
      const zip_int64_t got = zip_fread(member.get(), static_cast<char*>(target) + done,
                                        std::min(kBlock, bytes - done));
      if (got < 0) source.fail(zip_file_strerror(member.get()));
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  };
  NamedArray array = files::read_npy(source);
  char more = 0;  // reading to the end lets libzip verify the checksum
  if (source.read(&more, 1) != 0) source.fail("expected the end, got more bytes");
  return array;
}

// The name of a member in messages, "file.npz(x.npy)", with control characters escaped.
std::string member_name(const std::string& file, const zip_stat_t& status) {
  const std::string name = quoted(status.name);
  return fmt::format("{}({})", file, name.substr(1, name.size() - 2));
}

std::vector<NamedArray> read_members(zip_t* archive, const files::InputFile& file, Index size) {
  std::vector<NamedArray> arrays;
  auto left = static_cast<zip_uint64_t>(size);
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t status;
    zip_stat_init(&status);
    if (zip_stat_index(archive, static_cast<zip_uint64_t>(i), 0, &status) != 0) {
      throw InputError(file.name(), zip_strerror(archive));
    }
    // Members that share bytes could expand a small file into a large one: they are rejected.
    if (status.comp_size > left) {
      throw InputError(
          member_name(file.name(), status),
          fmt::format("expected at most {} bytes in addition to the earlier members, got {}", left,
                      status.comp_size));
    }
    left -= status.comp_size;
    std::string_view member = status.name;
    if (member.ends_with(kCheckpoint)) {
      throw InputError(file.name(),
                       "expected .npy members, got a PyTorch checkpoint: save arrays "
                       "with numpy.savez");
    }
    if (!member.ends_with(kSuffix)) continue;
    member.remove_suffix(kSuffix.size());
    arrays.push_back(read_member(file, archive, status, member_name(file.name(), status)));
    arrays.back().name = member;
  }
  return arrays;
}

}  // namespace

void write_npz(const std::string& path, std::span<const NamedView> arrays,
               Compression compression) {
  files::check_names("write_npz", arrays);
  std::list<files::NpyImage> images;  // a list, since libzip keeps pointers to the images
  for (const NamedView& array : arrays) images.emplace_back("write_npz", array.name, array.array);

  files::OutputFile file(path);
  int code = 0;
  Archive archive(zip_open(file.temporary_path().c_str(), ZIP_TRUNCATE, &code));
  if (!archive) throw OutputError(file.name(), message_of(code));
  auto image = images.begin();
  for (const NamedView& array : arrays) {
    if (!add_member(archive.get(), array.name, *image++, compression)) {
      throw OutputError(file.name(), zip_strerror(archive.get()));
    }
  }
  if (zip_close(archive.get()) != 0) throw OutputError(file.name(), zip_strerror(archive.get()));
  static_cast<void>(archive.release());
  file.commit();
}

std::vector<NamedArray> read_npz(const std::string& path, const std::atomic<bool>* stop) {
  files::InputFile file(path, stop);
  return files::read_npz(file);
}

}  // namespace qkv::app

namespace qkv::files {

bool is_npz(std::string_view head) {
  return head.starts_with("PK\3\4") || head.starts_with("PK\5\6");  // the latter has no members
}

std::vector<app::NamedArray> read_npz(InputFile& file) {
  check_head(file, is_npz, "an .npz archive");
  std::string whole;  // must outlive the archive
  const auto archive = app::open_archive(file, whole);
  const auto size = file.size().value_or(static_cast<Index>(whole.size()));
  return app::read_members(archive.get(), file, size);
}

}  // namespace qkv::files
