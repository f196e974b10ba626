//! What a shard counts for each volume. Plain numbers; the driver copies them out and adds up.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the volume was added, each by its reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct VolumeCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl VolumeCounters {
            /// Adds the counts of another shard.
            pub const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Lines asked for by reads and found valid at once.
    read_hit_lines,
    /// Lines asked for by reads and not, or not wholly, there.
    read_miss_lines,
    /// Lines written that were in the pool.
    write_hit_lines,
    /// Lines written that were not.
    write_miss_lines,
    /// Lines read ahead of the client.
    prefetched_lines,
    /// Lines read ahead and then asked for.
    prefetch_used_lines,
    /// Parts of reads that went past the cache because the volume bypasses it.
    direct_reads_bypass,
    /// Parts of reads that went past the cache because no line could make room.
    direct_reads_no_room,
    /// Parts of reads done again past the cache after a shared read failed.
    direct_reads_after_error,
    /// Parts of writes acknowledged from memory.
    writes_back,
    /// Parts of writes acknowledged from the disk because the mode says so.
    writes_through_mode,
    /// The same because the journal could not take it.
    writes_through_protection,
    /// The same because the client demanded it (FUA).
    writes_through_fua,
    /// The same because too much is dirty already.
    writes_through_dirty_limit,
    /// The same because no line could make room.
    writes_through_no_room,
    /// Parts of writes through the cache that waited for one on its way to the same stripe.
    writes_held,
    /// Of those, the ones that went to the disk together with another.
    gathered_writes,
    /// The I/Os that these went with.
    gathered_ios,
    /// Lines whose content was moved because somebody still used the old one.
    relocated_lines,
    /// Parts that waited for an operation on the same line.
    waits,
    /// Lines written back.
    destaged_lines,
    /// Writes they were written back with.
    destage_writes,
    /// Bytes of these writes, in which clean sectors count that went along.
    destaged_bytes,
    /// Destages of whole stripes.
    destaged_stripes,
    /// Destages of several runs of one stripe at once.
    scattered_destages,
    /// Parts of writes that waited until less was dirty.
    room_waits,
    /// Dirty lines times the milliseconds they were dirty, as far as ticks have seen them.
    dirty_line_ms,
    /// Destage operations started because of a FLUSH, a change of mode, or writers that wait.
    destages_urgent,
    /// Destage operations started because of age or the amount of dirty data.
    destages_background,
    /// Destage operations that failed; their data stays dirty and is tried again.
    destage_errors,
    /// Reads of the cache that the disk failed.
    fill_errors,
    /// Writes through the cache that the disk failed.
    write_errors,
    /// Lines found damaged in the pool.
    damaged_lines,
    /// Of those, lines that were put right from their parity.
    corrected_lines,
    /// Of those, lines of which clean sectors left the pool, to be read from the disk again.
    refetched_lines,
    /// Of those, lines of which dirty sectors were lost.
    lost_lines,
    /// Lines of which lost sectors came back from the journal.
    regained_lines,
}
