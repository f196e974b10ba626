//! Counters of each volume in a shard: plain numbers, which the driver copies and sums over shards.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the volume was added.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct VolumeCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl VolumeCounters {
            /// Adds the counts of another shard.
            pub const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Calls a function with the name and the value of each count.
            pub fn visit(&mut self, visit: &mut dyn FnMut(&'static str, &mut u64)) {
                $(visit(concat!("engine.", stringify!($name)), &mut self.$name);)*
            }
        }
    };
}

counters! {
    /// Lines requested by reads and found valid at once.
    read_hit_lines,
    /// Lines requested by reads and absent, or not valid in all requested sectors.
    read_miss_lines,
    /// Lines written that were in the pool.
    write_hit_lines,
    /// Lines written that were absent.
    write_miss_lines,
    prefetched_lines,
    /// Prefetched lines that a client then read.
    prefetch_used_lines,
    /// Lines preloaded by the volume's warm-up or for a forecast.
    preloaded_lines,
    /// Preloaded lines that a client then read.
    preload_used_lines,
    /// Lines read into the pool, in whole or in part, because their range is pinned.
    pin_loaded_lines,
    /// Parts of reads that bypassed the cache because of the volume's mode.
    direct_reads_bypass,
    /// Parts of reads that bypassed the cache because no slot could be freed, or after too many
    /// attempts.
    direct_reads_no_room,
    /// Parts of reads that bypassed the cache because a read shared with other parts failed.
    direct_reads_after_error,
    /// Parts of reads that bypassed the cache because their region is held out.
    direct_reads_hold_out,
    /// Parts of reads that bypassed the cache because the volume is frozen.
    direct_reads_frozen,
    /// Parts of writes acknowledged from memory.
    writes_back,
    /// Parts of writes acknowledged from the disk because of the volume's mode.
    writes_through_mode,
    /// Parts of writes acknowledged from the disk because the protection did not cover them.
    writes_through_protection,
    /// Parts of writes acknowledged from the disk because of FUA.
    writes_through_fua,
    /// Parts of writes acknowledged from the disk because a flush follows nearly every write.
    writes_through_flushed,
    /// Parts of writes acknowledged from the disk because the dirty limit was reached.
    writes_through_dirty_limit,
    /// Parts of writes acknowledged from the disk because no slot could be freed.
    writes_through_no_room,
    /// Parts of writes acknowledged from the disk because their region is held out.
    writes_through_hold_out,
    /// Parts of writes through the cache that were held back until another write to their stripe
    /// completed.
    writes_held,
    /// Held-back writes that shared their I/O with another one.
    gathered_writes,
    /// The I/Os shared by gathered writes.
    gathered_ios,
    /// Lines relocated because an operation or a reply had pinned the old slot.
    relocated_lines,
    /// Dirty lines and lines of pinned ranges that were moved because the memory of their slab is
    /// given back.
    moved_lines,
    /// Waits of parts: for an operation on one of their lines, or because they were throttled.
    waits,
    /// Dirty lines destaged, counted when the destage starts.
    destaged_lines,
    /// Dirty lines that became clean: destaged, written to the disk over the cache, or erased.
    cleaned_lines,
    /// Write I/Os of destages.
    destage_writes,
    /// Bytes of destages, including clean sectors written to complete stripes.
    destaged_bytes,
    /// Whole stripes destaged.
    destaged_stripes,
    /// Destages of several runs of one stripe.
    scattered_destages,
    /// Parts of writes that were throttled.
    throttled_writes,
    /// The number of dirty lines integrated over time, in line-milliseconds, sampled at ticks.
    dirty_line_ms,
    /// Destage operations started for a FLUSH, a change of mode, throttled writers, a write to the
    /// disk over dirty sectors, or a part that waits for an epoch.
    destages_urgent,
    /// Destage operations started because of age or the amount of dirty data, and those of epochs
    /// that no part waits for.
    destages_background,
    /// Destage operations that failed; their data stays dirty and is retried.
    destage_errors,
    /// Fills that failed on the disk.
    fill_errors,
    /// Writes through or past the cache that failed on the disk.
    write_errors,
    /// Lines found damaged in the pool.
    damaged_lines,
    /// Damaged lines repaired from their parity.
    corrected_lines,
    /// Damaged lines whose damaged clean sectors were dropped, to be read from the disk again.
    refetched_lines,
    /// Damaged lines that lost dirty sectors.
    lost_lines,
    /// Lines with lost sectors restored from the journal.
    regained_lines,
}
