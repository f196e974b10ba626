//! Block traces: recorded requests, one per line of a CSV file, plain or compressed by zstd.
//!
//! The first line is `time_us,volume,op,offset_bytes,length_bytes`; each other line is one request,
//! in the order of submission. `op` is `R`, `W`, or `0` if unknown. Times may all be zero, and
//! offsets need not be aligned. The first line may name further fields, such as
//! `latency_us,served` of `forebay trace`; a replay does not use them.
//!
//! A trace is held in memory, 32 bytes per request.

use forebay_types::LINE_BYTES;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

const HEADER: &str = "time_us,volume,op,offset_bytes,length_bytes";
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Parts of the development mix; the position is the part's number.
pub const MIX_DEV_PARTS: [&str; 7] =
    ["cloudphysics_2h", "arc_P6", "arc_OLTP", "msr_web0", "arc_P3", "hp_ajw", "lirs_sprite"];

/// The name of the development mix.
pub const MIX_DEV: &str = "mix_dev";

/// Volume numbers per part of a mix, so that parts do not share volumes.
const VOLUMES_PER_PART: u32 = 32;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
    /// The trace does not record it.
    Unknown,
}

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Microseconds since the first request, or 0 in every request.
    pub time_us: u64,
    /// First byte on the volume.
    pub offset_bytes: u64,
    /// Bytes, not zero.
    pub length_bytes: u64,
    /// The disk or volume of the trace.
    pub volume: u32,
    /// The operation.
    pub op: Op,
}

impl Request {
    /// The 4 KiB blocks that the request touches, first to last.
    pub const fn blocks(&self) -> RangeInclusive<u64> {
        self.offset_bytes / LINE_BYTES..=(self.offset_bytes + self.length_bytes - 1) / LINE_BYTES
    }
}

/// A recorded workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The name in tables: the file's name without extensions.
    pub name: String,
    /// The requests, in the order of submission.
    pub requests: Vec<Request>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("trace {path}: cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The compressed data is not a zstd stream.
    #[error("trace {path}: starts like zstd but cannot be unpacked ({reason}); copy it again")]
    Unpack {
        /// The file.
        path: PathBuf,
        /// The decoder's message.
        reason: String,
    },
    /// A line violates the format.
    #[error("trace {path}, line {line}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, counted from 1.
        line: u64,
        /// The violation.
        problem: LineProblem,
    },
    /// A mix lacks one of its parts.
    #[error("mix {mix} needs trace {part}; put {part}.csv.zst beside the others")]
    MissingPart {
        /// The mix.
        mix: &'static str,
        /// The part.
        part: &'static str,
    },
}

/// A violation of the format in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// The first line is not the header.
    #[error("expected the header '{HEADER}', found '{0}'")]
    Header(String),
    /// Not as many fields as in the first line.
    #[error("expected {expected} fields, found {found}")]
    FieldCount {
        /// The fields of the first line.
        expected: usize,
        /// The fields of this line.
        found: usize,
    },
    /// A field is not a whole number, or is too large.
    #[error("field {field} is '{text}', expected a whole number of at most {max}")]
    Number {
        /// The field's name in the header.
        field: &'static str,
        /// The text found.
        text: String,
        /// The largest value allowed.
        max: u64,
    },
    /// An unknown operation.
    #[error("field op is '{0}', expected R, W or 0")]
    Op(String),
    /// A request of length zero.
    #[error("field length_bytes is 0, expected at least 1")]
    Empty,
    /// The end of the request exceeds 64 bits.
    #[error("the request ends beyond the last byte that has an address")]
    TooFar,
    /// No line after the header, or an empty file.
    #[error("expected at least one request after the header")]
    NoRequests,
    /// The line is not text.
    #[error("the line is not UTF-8 text")]
    NotText,
}

impl Trace {
    /// Reads the file at `path`; its first bytes show whether it is compressed.
    ///
    /// # Errors
    /// Fails if the file cannot be read or decompressed, or if any line is wrong.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Read { path: path.to_owned(), source };
        let mut reader = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
        let is_packed = reader.fill_buf().map_err(failed)?.starts_with(&ZSTD_MAGIC);
        if !is_packed {
            return Self::parse(path, reader);
        }
        let unpacked = ruzstd::decoding::StreamingDecoder::new(reader).map_err(|error| {
            TraceError::Unpack { path: path.to_owned(), reason: error.to_string() }
        })?;
        Self::parse(path, BufReader::with_capacity(1 << 16, unpacked))
    }

    /// Reads a trace from `text`; `path` is used for its name and in errors.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn parse(path: &Path, mut text: impl BufRead) -> Result<Self, TraceError> {
        let mut requests = Vec::new();
        let mut buffer = Vec::new();
        let mut line = 0;
        let mut field_count = 0;
        let wrong = |line, problem| TraceError::Line { path: path.to_owned(), line, problem };
        loop {
            buffer.clear();
            let read = (&mut text).take(LINE_BYTES_MAX).read_until(b'\n', &mut buffer);
            let read = read.map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
            if read == 0 {
                break;
            }
            line += 1;
            let bytes = buffer.trim_ascii_end();
            let row = str::from_utf8(bytes).map_err(|_| wrong(line, LineProblem::NotText))?;
            if line > 1 {
                let request = parse_request(row, field_count);
                requests.push(request.map_err(|problem| wrong(line, problem))?);
            } else if row == HEADER || row.starts_with(&format!("{HEADER},")) {
                field_count = row.split(',').count();
            } else {
                return Err(wrong(line, LineProblem::Header(row.to_owned())));
            }
        }
        if requests.is_empty() {
            return Err(wrong(line.max(1), LineProblem::NoRequests));
        }
        Ok(Self { name: name_of(path), requests })
    }

    /// Merges traces into one, as if all their volumes shared one cache. Each part is stretched
    /// over the whole: request i of n has the position (i + 0.5) / n, and at equal positions the
    /// earlier part goes first. Volumes are renumbered to 32 x part + (volume mod 32), times are
    /// dropped.
    pub fn mix(name: &str, parts: &[&Self]) -> Self {
        let count = parts.iter().map(|part| part.requests.len()).sum();
        let mut requests = Vec::with_capacity(count);
        let mut next = vec![0usize; parts.len()];
        // Positions are compared exactly, as fractions: (2i + 1) / 2n.
        let key = |part: usize, i: usize| (2 * i as u128 + 1, parts[part].requests.len() as u128);
        for _ in 0..count {
            let earliest = (0..parts.len())
                .filter(|&part| next[part] < parts[part].requests.len())
                .min_by(|&a, &b| {
                    let ((a_place, a_len), (b_place, b_len)) = (key(a, next[a]), key(b, next[b]));
                    (a_place * b_len).cmp(&(b_place * a_len)).then(a.cmp(&b))
                })
                .expect("as many requests are taken as the parts hold");
            let request = parts[earliest].requests[next[earliest]];
            next[earliest] += 1;
            let volume = VOLUMES_PER_PART * earliest as u32 + request.volume % VOLUMES_PER_PART;
            requests.push(Request { time_us: 0, volume, ..request });
        }
        Self { name: name.to_owned(), requests }
    }

    /// The development mix of traces among `traces`.
    ///
    /// # Errors
    /// Fails if one of [`MIX_DEV_PARTS`] is missing.
    pub fn mix_dev(traces: &[Self]) -> Result<Self, TraceError> {
        let by_name: HashMap<&str, &Self> =
            traces.iter().map(|trace| (trace.name.as_str(), trace)).collect();
        let mut parts = Vec::with_capacity(MIX_DEV_PARTS.len());
        for part in MIX_DEV_PARTS {
            let missing = TraceError::MissingPart { mix: MIX_DEV, part };
            parts.push(*by_name.get(part).ok_or(missing)?);
        }
        Ok(Self::mix(MIX_DEV, &parts))
    }
}

/// The maximum length of a line. It keeps a file without line breaks from filling memory.
const LINE_BYTES_MAX: u64 = 4096;

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".zst").unwrap_or(&name);
    name.strip_suffix(".csv").unwrap_or(name).to_owned()
}

/// Parses a line with this many fields, of which the first five count.
fn parse_request(row: &str, expected: usize) -> Result<Request, LineProblem> {
    let mut fields = row.split(',');
    let [time_us, volume, op, offset_bytes, length_bytes] =
        std::array::from_fn(|_| fields.next().unwrap_or_default());
    let found = row.split(',').count();
    if found != expected {
        return Err(LineProblem::FieldCount { expected, found });
    }
    let time_us = number("time_us", time_us, u64::MAX)?;
    let volume = number("volume", volume, u64::from(u32::MAX))? as u32;
    let op = match op {
        "R" => Op::Read,
        "W" => Op::Write,
        "0" => Op::Unknown,
        other => return Err(LineProblem::Op(other.to_owned())),
    };
    let offset_bytes = number("offset_bytes", offset_bytes, u64::MAX)?;
    let length_bytes = number("length_bytes", length_bytes, u64::MAX)?;
    if length_bytes == 0 {
        return Err(LineProblem::Empty);
    }
    if offset_bytes.checked_add(length_bytes).is_none() {
        return Err(LineProblem::TooFar);
    }
    Ok(Request { time_us, offset_bytes, length_bytes, volume, op })
}

fn number(field: &'static str, text: &str, max: u64) -> Result<u64, LineProblem> {
    // `parse` alone would accept a sign.
    let digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
    let value = if digits_only { text.parse().ok().filter(|&value| value <= max) } else { None };
    value.ok_or_else(|| LineProblem::Number { field, text: text.to_owned(), max })
}

#[cfg(test)]
mod tests;
