"""RocksDB options for lanes, which keep memory bounded while tables grow."""

from __future__ import annotations

from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, Options

from streams.units import MIB

_METADATA_BLOCK = 16 * 1024
#: Maximum number of table files that one lane's store keeps open.
MAX_OPEN_FILES = 256


def table_options(cache: Cache, write_buffer_bytes: int) -> Options:
    """Options of a lane's database and of each of its tables. All lanes of the process share `cache`."""
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    # Indexes and filters are split into small blocks, which are cached like those of rows. Otherwise a file
    # of a million rows would have a filter larger than a shard of the cache, and RocksDB would read the
    # filter again for each row that is looked up.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_METADATA_BLOCK)
    table.set_pin_top_level_index_and_filter(True)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(write_buffer_bytes)
    # One limit for all tables of a lane, because each table may fill two buffers. It does not span lanes,
    # because a lane flushes only its own tables, and would do so over and over if others used up the limit.
    options.set_db_write_buffer_size(write_buffer_bytes)
    # Every table that was ever written to takes one block. The default is an eighth of the write buffer.
    options.set_arena_block_size(write_buffer_bytes // 128)
    # Most keys that are looked up are not in memory: new ids exist nowhere, and rows are in files. The filter
    # has the right size for a write buffer of small rows. Each table that was written to has one.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.01)
    options.set_compression_type(DBCompressionType.lz4())
    # A table that is seldom written to would otherwise keep all older log files alive.
    options.set_max_total_wal_size(64 * MIB)
    # Larger batches bypass this buffer, which by default grows to 1 MB for each file.
    options.set_writable_file_max_buffer_size(16 * 1024)
    options.set_max_open_files(MAX_OPEN_FILES)
    options.set_max_background_jobs(2)
    options.set_stats_dump_period_sec(0)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(MIB)
    return options
