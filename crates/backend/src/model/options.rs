//! `model:hdd?…` and `model:ssd?…`: modelled disks from their names.

use super::{DiskModel, Hdd, HddSpec, ModelBackend, Scheduler, Ssd, SsdSpec};
use crate::memory::MemoryBackend;
use crate::open::open_nested;
use crate::spec::{Fields, SpecError, bytes_per_second, duration_ns, number, size_bytes, switch};
use crate::{Backend, OpenError, OpenOptions};
use forebay_types::{SECTOR_BYTES, Size};
use std::sync::Arc;

/// Why a modelled disk can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The store that holds the data is too small.
    #[error(
        "the backing store '{backing}' has {backing_size}, too little for a modelled disk of \
         {size}: leave size= out, or make the store larger"
    )]
    TooSmall {
        /// The store.
        backing: String,
        /// Its size.
        backing_size: Size,
        /// The size of the disk.
        size: Size,
    },
    /// Not made of whole sectors.
    #[error("a modelled disk of {size} can't be: give a multiple of 512 bytes, like size=8GiB")]
    Size {
        /// The size asked for.
        size: Size,
    },
}

const HDD_KEYS: [&str; 9] =
    ["size", "backing", "rpm", "seek", "transfer", "queue", "scheduler", "write-cache", "seed"];
const SSD_KEYS: [&str; 7] =
    ["size", "backing", "read-latency", "write-latency", "flush-latency", "parallel", "bandwidth"];

/// Opens a modelled disk from what stands behind `model:`.
pub(crate) fn open(
    text: &str,
    options: &OpenOptions,
    depth: usize,
) -> Result<Arc<dyn Backend>, OpenError> {
    let (name, query) = text.split_once('?').unwrap_or((text, ""));
    let spec = format!("model:{text}");
    let what = format!("model:{name}");
    let (fields, is_hdd) = match name {
        "hdd" => (Fields::parse(&what, query, '&', &HDD_KEYS)?, true),
        "ssd" => (Fields::parse(&what, query, '&', &SSD_KEYS)?, false),
        _ => return Err(SpecError::NoModel { name: name.to_owned() }.into()),
    };
    // The options first, so that a typing error opens, creates and locks nothing.
    let hdd = if is_hdd { Some(hdd_spec(&fields)?) } else { None };
    let ssd = if is_hdd { None } else { Some(ssd_spec(&fields)?) };
    let (inner, size_bytes) = store(&fields, options, depth)?;
    let model: Box<dyn DiskModel> = match (hdd, ssd) {
        (Some(hdd), _) => Box::new(Hdd::new(HddSpec { size_bytes, ..hdd })),
        (None, ssd) => Box::new(Ssd::new(ssd.unwrap_or_default())),
    };
    Ok(Arc::new(ModelBackend::new(&spec, inner, model, size_bytes)))
}

/// The store that holds the data, and the size of the disk.
fn store(
    fields: &Fields<'_>,
    options: &OpenOptions,
    depth: usize,
) -> Result<(Arc<dyn Backend>, u64), OpenError> {
    let size_asked = fields.get("size", "8GiB", size_bytes)?;
    if let Some(bytes) = size_asked
        && (bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES))
    {
        return Err(ModelError::Size { size: Size(bytes) }.into());
    }
    let Some(backing) = fields.text("backing") else {
        let size_bytes = size_asked.ok_or_else(|| fields.missing("size", "8GiB"))?;
        let memory = MemoryBackend::new(size_bytes)?.read_only(options.read_only);
        return Ok((Arc::new(memory), size_bytes));
    };
    let inner = open_nested(backing, options, depth + 1)?;
    let backing_bytes = inner.description().size_bytes;
    let size_bytes = size_asked.unwrap_or(backing_bytes);
    if size_bytes > backing_bytes {
        let (size, backing_size) = (Size(size_bytes), Size(backing_bytes));
        let backing = backing.to_owned();
        return Err(ModelError::TooSmall { backing, backing_size, size }.into());
    }
    Ok((inner, size_bytes))
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
        write_cache: fields.get("write-cache", "on or off", switch)?.unwrap_or(false),
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
