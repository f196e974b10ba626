//! Configuration: parsing and validation of the configuration file, of volume specifications, sizes
//! and addresses.
//!
//! Settings come from command-line options and from a TOML file with the same keys, which
//! `forebay_types` describes in two tables. Each source is parsed into [`Settings`], options
//! override the file, and the result is checked into a [`Config`], which the daemon can rely on.
//! Parsing and checking are pure: only [`SettingsSource::load`], [`read_file`], [`default_state`]
//! and [`MemorySources`] access anything but their arguments.
//!
//! Every error has a message, a remedy and, for a file, the position. [`parse_toml`] and
//! [`parse_volume_spec`] do not panic on any text, and the `Display` of a parsed value parses to
//! the same value, except that it leaves out a password.

mod cache_ratio;
mod config;
mod diff;
mod error;
mod example;
mod file;
mod gather;
mod geometry;
mod layer;
mod listen;
mod machine;
mod memory;
mod metrics;
mod pin;
mod pool_share;
mod protection;
mod request_limits;
mod server_change;
mod settings;
mod site;
mod spec;
mod takeover;
mod tls_settings;
mod ups;
mod ups_settings;
mod volume;
mod words;
mod write_back;

pub use cache_ratio::CacheRatio;
pub use config::{CONTROL_SOCKET, Config, NBD_SOCKET, SettingsSource, default_state, read_file};
pub use diff::{ConfigChange, diff};
pub use error::{ConfigError, ConfigResult, Mistake, Position};
pub use example::example;
pub use file::parse_toml;
pub use geometry::{GeometrySource, ResolvedGeometry};
pub use layer::Settings;
pub use listen::{Listen, SocketAccess, SocketDirectory, TcpAddress, UNIX_PATH_BYTES_MAX};
pub use machine::{
    Bound, GroupLimit, LoadSources, MemInfo, MemoryPressure, MemorySources, Stalls, SystemLoad,
};
pub use memory::{
    AUTO_BYTES_MIN, KeptMemory, MACHINE_BYTES_MIN, MemoryChoice, MemoryError, MemoryReserve,
    MemorySettings, RESERVE_BYTES,
};
pub use metrics::MetricsAddress;
pub use pin::{parse_pinned_ranges, pinned_ranges_shown};
pub use server_change::ServerChange;
pub use settings::{
    BackgroundMode, Ecc, IoEngine, KeeperMode, LogLevel, MemorySetting, PollingMode, TlsMode,
    WORKERS_MAX, Workers,
};
pub use site::{HttpAddress, SiteSettings, SiteSource};
pub use spec::parse_volume_spec;
pub use tls_settings::TlsSettings;
pub use ups::{Percent, Seconds, Secret, Ups, UpsSource};
pub use ups_settings::UpsSettings;
pub use volume::{
    BACKING_BYTES_MAX, DESCRIPTION_BYTES_MAX, VolumeChange, VolumeSpec, check_volume_name,
};
pub use words::nearest;
pub use write_back::read_latency_shown;

forebay_types::faults! { ConfigError, memory::MemoryError }
