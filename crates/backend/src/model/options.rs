//! Parses the names of modelled disks and arrays: `model:hdd?…`, `model:raid5?…`.

use super::array::{ArrayError, ArrayModel, ArraySpec, BLOCK_BYTES, Drive, Level};
use super::{DiskModel, HddSpec, ModelBackend, Scheduler, SsdSpec};
use crate::memory::MemoryBackend;
use crate::open::open_nested;
use crate::spec::{Fields, SpecError, bytes_per_second, duration_ns, number, size_bytes, switch};
use crate::{Backend, OpenError, OpenOptions};
use forebay_types::{Blame, Fault, Remedy, SECTOR_BYTES, Size};
use std::sync::Arc;

/// Why a modelled disk cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The store that holds the data is too small.
    #[error(
        "the backing store '{backing}' has {backing_size}, too little for a modelled disk of \
         {size}"
    )]
    TooSmall {
        /// The store.
        backing: String,
        backing_size: Size,
        /// The size of the disk.
        size: Size,
    },
    /// Zero, or not a multiple of the sector size.
    #[error("{size} is not a valid size for a modelled disk")]
    Size {
        /// The requested size.
        size: Size,
    },
    /// The array is impossible.
    #[error(transparent)]
    Array(#[from] ArrayError),
}

impl Fault for ModelError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::TooSmall { .. } => Remedy::from("remove size=").or("make the store larger"),
            Self::Size { .. } => "give a multiple of 512 bytes, like size=8GiB".into(),
            Self::Array(error) => error.remedy(),
        }
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

const STORE_KEYS: [&str; 2] = ["size", "backing"];
const HDD_KEYS: [&str; 7] =
    ["rpm", "seek", "transfer", "queue", "scheduler", "write-cache", "seed"];
const SSD_KEYS: [&str; 5] =
    ["read-latency", "write-latency", "flush-latency", "parallel", "bandwidth"];
const FIXED_KEYS: [&str; 1] = ["latency"];
const ARRAY_KEYS: [&str; 5] = ["drives", "chunk", "degraded", "drive", "drive-size"];
/// Prefix of the drive options of an array.
const DRIVE_PREFIX: &str = "drive-";

/// Opens a modelled disk or array from the text after `model:`.
pub(crate) fn open(
    text: &str,
    options: &OpenOptions,
    depth: usize,
) -> Result<Arc<dyn Backend>, OpenError> {
    // Parse the options first, so that an invalid one opens, creates and locks nothing.
    let what = name_in_messages(text);
    let parsed = ParsedName::parse(&what, text, &STORE_KEYS)?;
    let (inner, bytes) = store(&parsed.fields, parsed.requested_bytes, options, depth)?;
    let size_bytes = parsed.kind.size_within(bytes);
    let model = parsed.kind.make(size_bytes)?;
    Ok(Arc::new(ModelBackend::new(&format!("model:{text}"), inner, model, size_bytes)))
}

/// The timing of a modelled disk or array without a store, for virtual time, and its size in bytes.
/// The name is that of [`crate::open()`], with or without `model:`.
pub fn timing(name: &str) -> Result<(Box<dyn DiskModel>, u64), OpenError> {
    let text = name.strip_prefix("model:").unwrap_or(name);
    let what = name_in_messages(text);
    let parsed = ParsedName::parse(&what, text, &["size"])?;
    let size_bytes = parsed.requested_bytes.ok_or_else(|| parsed.fields.missing("size", "8GiB"))?;
    check_size(size_bytes)?;
    Ok((parsed.kind.make(size_bytes)?, size_bytes))
}

/// The name of a model in messages.
fn name_in_messages(text: &str) -> String {
    format!("model:{}", text.split('?').next().unwrap_or(text))
}

/// A parsed model name.
struct ParsedName<'a> {
    kind: ModelKind,
    /// The size in the name, in bytes.
    requested_bytes: Option<u64>,
    fields: Fields<'a>,
}

enum ModelKind {
    Disk(Drive),
    Array(ArraySpec, Drive),
}

impl<'a> ParsedName<'a> {
    /// Parses the text after `model:`, with `store_keys` in addition to the options of the model.
    fn parse(what: &'a str, text: &'a str, store_keys: &[&str]) -> Result<Self, OpenError> {
        let (name, query) = text.split_once('?').unwrap_or((text, ""));
        if let Some(level) = Level::named(name) {
            let own = array_keys(level, drive_kind(query));
            let keys: Vec<&str> =
                store_keys.iter().copied().chain(own.iter().map(String::as_str)).collect();
            let fields = Fields::parse(what, query, '&', &keys)?;
            let (spec, drive) = array_spec(level, &fields)?;
            let requested_bytes = array_size(&spec, &fields)?;
            return Ok(Self { kind: ModelKind::Array(spec, drive), requested_bytes, fields });
        }
        let Some(own) = drive_keys(name) else {
            return Err(SpecError::NoModel { name: name.to_owned() }.into());
        };
        let keys: Vec<&str> = store_keys.iter().chain(own).copied().collect();
        let fields = Fields::parse(what, query, '&', &keys)?;
        let drive = drive(name, &fields)?;
        let requested_bytes = fields.get("size", "8GiB", size_bytes)?;
        Ok(Self { kind: ModelKind::Disk(drive), requested_bytes, fields })
    }
}

impl ModelKind {
    /// The part of `bytes` that the disk uses: an array uses whole stripes. If `bytes` hold no
    /// whole stripe, returns `bytes`, which `make` refuses.
    fn size_within(&self, bytes: u64) -> u64 {
        match self {
            Self::Array(spec, _) if spec.size_within(bytes) > 0 => spec.size_within(bytes),
            _ => bytes,
        }
    }

    fn make(&self, size_bytes: u64) -> Result<Box<dyn DiskModel>, OpenError> {
        match self {
            Self::Disk(drive) => Ok(drive.make(0, size_bytes)),
            Self::Array(spec, drive) => {
                let drive_bytes = spec.drive_bytes(size_bytes).map_err(ModelError::from)?;
                Ok(Box::new(ArrayModel::new(*spec, drive, drive_bytes)))
            }
        }
    }
}

/// The options of a kind of disk, without those of the store; `None` if the kind is unknown.
fn drive_keys(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "hdd" => Some(&HDD_KEYS),
        "ssd" => Some(&SSD_KEYS),
        "fixed" => Some(&FIXED_KEYS),
        _ => None,
    }
}

/// A kind of disk with its options.
fn drive(kind: &str, fields: &Fields<'_>) -> Result<Drive, SpecError> {
    match kind {
        "ssd" => Ok(Drive::Ssd(ssd_spec(fields)?)),
        "fixed" => {
            let latency_ns = fields.get("latency", "5ms", duration_ns)?;
            Ok(Drive::Fixed(latency_ns.ok_or_else(|| fields.missing("latency", "5ms"))?))
        }
        _ => Ok(Drive::Hdd(hdd_spec(fields)?)),
    }
}

/// The kind of an array's drives, before the options are validated.
fn drive_kind(query: &str) -> &str {
    let kind = query.split('&').find_map(|field| field.strip_prefix("drive=")).unwrap_or("hdd");
    if drive_keys(kind).is_some() { kind } else { "hdd" }
}

fn array_keys(level: Level, kind: &str) -> Vec<String> {
    let own = drive_keys(kind).unwrap_or_default();
    let is_known = |key: &&&str| level != Level::Raid1 || **key != "chunk";
    let array = ARRAY_KEYS.iter().filter(is_known).map(|&key| key.to_owned());
    array.chain(own.iter().map(|key| format!("{DRIVE_PREFIX}{key}"))).collect()
}

/// The layout of an array, and its drives.
fn array_spec(level: Level, fields: &Fields<'_>) -> Result<(ArraySpec, Drive), OpenError> {
    let is_kind = |text: &str| drive_keys(text).is_some().then(|| text.to_owned());
    let kind = fields.get("drive", "hdd, ssd or fixed", is_kind)?;
    let drive = drive(kind.as_deref().unwrap_or("hdd"), &fields.under(DRIVE_PREFIX))?;
    let drives = fields.get("drives", "15", number)?.ok_or_else(|| fields.missing("drives", "15"));
    // Mirrors have no chunks; their size is whole blocks.
    let chunk_default = if level == Level::Raid1 { BLOCK_BYTES } else { 512 << 10 };
    let chunk_bytes = fields.get("chunk", "64KiB", size_bytes)?.unwrap_or(chunk_default);
    let degraded = fields.get("degraded", "1", number)?.unwrap_or(0);
    let spec = ArraySpec::new(level, drives?, chunk_bytes, degraded).map_err(ModelError::from)?;
    Ok((spec, drive))
}

/// The size of an array in bytes, if its name gives one.
fn array_size(spec: &ArraySpec, fields: &Fields<'_>) -> Result<Option<u64>, OpenError> {
    let size = fields.get("size", "8GiB", size_bytes)?;
    let drive_size = fields.get("drive-size", "1GiB", size_bytes)?;
    let requested_bytes = match (size, drive_size) {
        (Some(_), Some(_)) => return Err(ModelError::from(ArrayError::TwoSizes).into()),
        (None, Some(drive_bytes)) => Some(spec.size_bytes(drive_bytes).map_err(ModelError::from)?),
        (size, None) => size,
    };
    match requested_bytes {
        Some(bytes) => {
            spec.drive_bytes(bytes).map_err(ModelError::from)?;
        }
        None if fields.text("backing").is_none() => {
            return Err(fields.missing("drive-size", "1GiB").into());
        }
        None => {}
    }
    Ok(requested_bytes)
}

/// Opens the store for the data. Returns it with the size of the disk.
fn store(
    fields: &Fields<'_>,
    requested_bytes: Option<u64>,
    options: &OpenOptions,
    depth: usize,
) -> Result<(Arc<dyn Backend>, u64), OpenError> {
    requested_bytes.map_or(Ok(()), check_size)?;
    let Some(backing) = fields.text("backing") else {
        let size_bytes = requested_bytes.ok_or_else(|| fields.missing("size", "8GiB"))?;
        let memory = MemoryBackend::new(size_bytes)?.read_only(options.read_only);
        return Ok((Arc::new(memory), size_bytes));
    };
    let inner = open_nested(backing, options, depth + 1)?;
    let backing_bytes = inner.description().size_bytes();
    let size_bytes = requested_bytes.unwrap_or(backing_bytes);
    if size_bytes > backing_bytes {
        let (size, backing_size) = (Size(size_bytes), Size(backing_bytes));
        let backing = backing.to_owned();
        return Err(ModelError::TooSmall { backing, backing_size, size }.into());
    }
    Ok((inner, size_bytes))
}

/// Checks that a size consists of whole sectors.
fn check_size(bytes: u64) -> Result<(), ModelError> {
    match bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        true => Err(ModelError::Size { size: Size(bytes) }),
        false => Ok(()),
    }
}

fn hdd_spec(fields: &Fields<'_>) -> Result<HddSpec, SpecError> {
    let default = HddSpec::new(0);
    let revolutions = |text: &str| number(text).filter(|rpm| (60..=100_000).contains(rpm));
    let depth = |text: &str| number(text).filter(|depth| (1..=1024).contains(depth));
    let scheduler = |text: &str| match text {
        "ncq" => Some(Scheduler::ShortestPositioning),
        "elevator" => Some(Scheduler::Elevator),
        "fifo" => Some(Scheduler::Fifo),
        _ => None,
    };
    Ok(HddSpec {
        revolutions_per_minute: fields
            .get("rpm", "7200", revolutions)?
            .unwrap_or(default.revolutions_per_minute),
        seek_average_ns: fields
            .get("seek", "8.5ms", duration_ns)?
            .unwrap_or(default.seek_average_ns),
        transfer_bytes_per_second: fields
            .get("transfer", "120MiB/s", bytes_per_second)?
            .unwrap_or(default.transfer_bytes_per_second),
        queue_depth: fields.get("queue", "32", depth)?.unwrap_or(default.queue_depth),
        scheduler: fields
            .get("scheduler", "ncq, elevator or fifo", scheduler)?
            .unwrap_or(default.scheduler),
        has_write_cache: fields.get("write-cache", "on or off", switch)?.unwrap_or(false),
        seed: fields.get("seed", "1", number)?.unwrap_or(default.seed),
        ..default
    })
}

fn ssd_spec(fields: &Fields<'_>) -> Result<SsdSpec, SpecError> {
    let default = SsdSpec::default();
    let count = |text: &str| number(text).filter(|count| (1..=4096).contains(count));
    let latency = |key, example, default_ns| {
        Ok::<u64, SpecError>(fields.get(key, example, duration_ns)?.unwrap_or(default_ns))
    };
    Ok(SsdSpec {
        read_latency_ns: latency("read-latency", "80us", default.read_latency_ns)?,
        write_latency_ns: latency("write-latency", "20us", default.write_latency_ns)?,
        flush_latency_ns: latency("flush-latency", "100us", default.flush_latency_ns)?,
        parallel_count: fields.get("parallel", "32", count)?.unwrap_or(default.parallel_count),
        bytes_per_second: fields
            .get("bandwidth", "2GiB/s", bytes_per_second)?
            .unwrap_or(default.bytes_per_second),
    })
}
