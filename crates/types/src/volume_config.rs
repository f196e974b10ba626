//! The settings of a volume: the only place that has their names, types, values, defaults and
//! meanings.
//!
//! `forebay-config` reads and writes their texts and checks that they are consistent. The runtime
//! keeps the [`VolumeConfig`] of each volume and acts by it.

use crate::settings::{Setting, fixed, live};
use crate::{
    Auto, DiskFormat, Durability, Mode, PinnedRanges, Protection, ReadLatency, TlsUse, UnsafeUps,
};

/// Defines [`VolumeConfig`] and [`VOLUME_SETTINGS`]. An entry consists of whether the setting can
/// change while the volume is served, field, type and default, then name, values and default as
/// text, and meaning; see [`Setting`].
macro_rules! volume_settings {
    ($(
        $live:ident $field:ident: $type:ty = $value:expr,
        $key:literal, $values:literal, $default:literal, $help:literal;
    )+) => {
        /// The settings of a volume. Sizes are in bytes; zero stands for `none` and `off` of a size
        /// that can also be `auto`.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct VolumeConfig {
            $(#[doc = $help] pub $field: $type,)+
        }

        impl Default for VolumeConfig {
            fn default() -> Self {
                Self { $($field: $value,)+ }
            }
        }

        /// All settings of a volume, in the order of help texts.
        pub const VOLUME_SETTINGS: [Setting; VOLUME_KEYS.len()] =
            [$($live($key, $values, $default, $help),)+];

        /// The names of [`VOLUME_SETTINGS`], in the same order.
        pub const VOLUME_KEYS: [&str; [$($key,)+].len()] = [$($key,)+];
    };
}

volume_settings! {
    live mode: Mode = Mode::WriteThrough,
        "mode", "write-back|write-through|bypass", "write-through",
        "cache mode";
    live protection: Protection = Protection::Unstated,
        "protection", "none|journal|ups|journal+ups", "",
        "what protects acknowledged writes that are not on the disk yet";
    live journal: Option<String> = None, "journal", "BACKING", "",
        "the journal, with `protection=journal`; volumes may share one";
    live journal_mirror: Option<String> = None, "journal-mirror", "BACKING", "",
        "second device of the journal";
    fixed durability: Durability = Durability::Ack, "durability", "ack|flush", "ack",
        "with a journal: `ack` waits for each write's record; `flush` waits only at a FLUSH";
    live unsafe_supply: UnsafeUps = UnsafeUps::Stable,
        "unsafe-supply", "stable|disk-cache", "stable",
        "what a write must reach before it is acknowledged while the UPS is not safe: stable \
         storage or the disk's cache";
    fixed ordered: bool = false, "ordered", "yes|no", "no",
        "destage in epochs between flushes, so that the disk alone is always crash-consistent";
    live accept_loss: bool = false, "accept-loss", "yes|no", "no",
        "required for write-back with `protection=none`: a crash may lose acknowledged writes. \
         With a journal: serve the volume although its journal is damaged";
    live nofail: bool = false, "nofail", "yes|no", "no",
        "the server starts without the volume if it cannot serve it, and serves it once it can";
    fixed standby: bool = false, "standby", "yes|no", "no",
        "another host may have it: it is served from `forebay takeover` on";
    live takeover_after_s: Option<u64> = None, "takeover-after", "TIME|off", "off",
        "with `standby`: take it over when its owner has not written to its journal for so long";
    live read_only: bool = false, "read-only", "yes|no", "no",
        "writes are refused, and the backing store is opened read-only";
    fixed reserve: bool = false, "reserve", "yes|no", "no",
        "the disk refuses the writes of other hosts, by a persistent reservation (SCSI or NVMe)";
    live format: DiskFormat = DiskFormat::Auto, "format", "auto|raw", "auto",
        "`auto` refuses a disk image in another format, such as qcow2, VMDK or VHDX; `raw` \
         serves any content as it is";
    live frozen: bool = false, "frozen", "yes|no", "no",
        "keep new data out of memory, as for the time of a scan or a backup";
    live share_min: Option<u8> = None, "share-min", "PERCENT|off", "off",
        "share of the memory that other volumes do not take from it";
    live share_max: Option<u8> = None, "share-max", "PERCENT|off", "off",
        "largest share of the memory";
    live prefetch: bool = true, "prefetch", "yes|no", "yes",
        "read ahead of sequential streams";
    live warm: bool = true, "warm", "yes|no", "yes",
        "after a restart, read the most valuable cached data back into memory";
    live pin: PinnedRanges = PinnedRanges::default(), "pin", "none|all|RANGES", "none",
        "ranges that stay in memory: `OFFSET+LENGTH`, several separated by commas; `all` is the \
         whole volume";
    live learn: bool = true, "learn", "yes|no", "yes",
        "preload data shortly before the time of day at which it is usually needed";
    fixed stripe: Auto<u64> = Auto::Auto, "stripe", "SIZE|none|auto", "auto",
        "stripe width without parity";
    fixed chunk: Auto<u64> = Auto::Auto, "chunk", "SIZE|auto", "auto",
        "chunk size: bytes of a stripe on one drive";
    fixed stripe_offset: Auto<u64> = Auto::Auto, "stripe-offset", "SIZE|auto", "auto",
        "offset of the first whole stripe";
    fixed rotational: Auto<bool> = Auto::Auto, "rotational", "yes|no|auto", "auto",
        "whether seeks cost time";
    live gather_below: Auto<u64> = Auto::Auto, "gather-below", "SIZE|off|auto", "auto",
        "gather writes below this size";
    live read_latency: ReadLatency = ReadLatency::Idle, "read-latency", "TIME|idle|off", "idle",
        "target p99 latency of reads while writeback runs";
    live write_back_rate: Option<u64> = None, "write-back-rate", "SIZE|off", "off",
        "maximum writeback per second";
    live write_back_iops: Option<u64> = None, "write-back-iops", "NUMBER|off", "off",
        "maximum writeback I/Os per second";
    live write_back_age_s: Option<u64> = Some(86_400), "write-back-age", "TIME|off", "24h",
        "how long reads may delay dirty data";
    live loss_limit: Option<u64> = None, "loss-limit", "SIZE|off", "off",
        "the most acknowledged data that the disk may lack: what can be lost with this host";
    live iops_limit: Option<u64> = None, "iops-limit", "NUMBER|off", "off",
        "maximum requests per second of all clients";
    live bandwidth_limit: Option<u64> = None, "bandwidth-limit", "SIZE|off", "off",
        "maximum bytes per second that all clients read and write";
    live limit_burst_us: u64 = 100_000, "limit-burst", "TIME", "100ms",
        "how much of `iops-limit` and `bandwidth-limit` may pass at once after idleness";
    live slow_us: Option<u64> = Some(1_000_000), "slow", "TIME|off", "1s",
        "minimum latency of a request that is logged as slow";
    live tls: TlsUse = TlsUse::Optional, "tls", "required|optional", "optional",
        "`required` hides the volume from unencrypted clients";
    live description: Option<String> = None, "description", "TEXT", "",
        "shown to clients; at most 4,096 bytes";
}
