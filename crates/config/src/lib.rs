//! What the operator wrote, checked: configuration file, volume specifications, sizes, addresses.
//!
//! Settings come from the options of the command line and from a TOML file with the same words.
//! Each source is read into [`Settings`], the two are laid over each other, and the result is
//! checked into a [`Config`], which the daemon can rely on. Reading is separate from checking and
//! both from the machine: only [`Source::load`], [`read_file`], [`default_state`] and
//! [`MemInfo::read`] touch anything but their arguments.
//!
//! Every error says what is wrong and what to write instead, and where it stands if it stands in a
//! file. [`parse_toml`] and [`parse_volume_spec`] take any text whatever without a panic, and what
//! they accept is shown (`Display`) so that it reads back the same.

mod config;
mod diff;
mod error;
mod file;
mod gather;
mod geometry;
mod layer;
mod listen;
mod meminfo;
mod memory;
mod protection;
mod settings;
mod spec;
mod ups;
mod volume;
mod words;
mod write_back;

pub use config::{CONTROL_SOCKET, Config, NBD_SOCKET, Source, default_state, read_file};
pub use diff::{Change, diff};
pub use error::{ConfigError, ConfigResult, Mistake, Place};
pub use file::{FILE_KEYS, parse_toml};
pub use geometry::{Auto, GeometryChange, GeometrySource, GeometrySpec, ResolvedGeometry};
pub use layer::Settings;
pub use listen::{Listen, UNIX_PATH_BYTES_MAX};
pub use memory::{AUTO_BYTES_MIN, MACHINE_BYTES_MIN, MemInfo, MemoryError, SYSTEM_BYTES_MIN};
pub use protection::Protection;
pub use settings::{
    Ecc, IoEngine, KeeperMode, LogLevel, MemorySetting, TlsMode, TlsSettings, WORKERS_MAX, Workers,
};
pub use spec::parse_volume_spec;
pub use ups::{Percent, Seconds, Secret, Supply, SupplyPlace, UpsSettings, UpsWords};
pub use volume::{
    BACKING_BYTES_MAX, DESCRIPTION_BYTES_MAX, TlsUse, VolumeChange, VolumeSpec, check_volume_name,
};
pub use write_back::{ReadLatency, WriteBackChange, WriteBackSpec};
