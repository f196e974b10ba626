//! The geometry of a disk: the operator's settings, combined with the values that the disk reports.
//!
//! All settings are optional; by default the reported values apply. A setting overrides the disk,
//! which may report wrong values. A contradiction is not an error: a note in the status shows it.

use crate::{
    ConfigError, ConfigResult, Mistake,
    words::{self, yes_no},
};
use forebay_types::{
    Auto, DiskGeometry, SECTOR_BYTES, Size, VolumeConfig, limits::STRIPE_BYTES_MAX,
};
use std::fmt;

/// The source of a part of the geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum GeometrySource {
    /// The disk, as reported by the kernel.
    Device,
    /// The operator's settings.
    Hand,
    /// Neither.
    #[default]
    Unknown,
}

/// The effective geometry of a volume's disk, with the source of each part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ResolvedGeometry {
    pub geometry: DiskGeometry,
    /// The source of the stripe width.
    pub stripe_source: GeometrySource,
    /// The source of the chunk size.
    pub chunk_source: GeometrySource,
    /// The source of the stripe offset.
    pub offset_source: GeometrySource,
    /// The source of [`DiskGeometry::rotational`].
    pub rotational_source: GeometrySource,
    /// Whether a whole stripe exceeds the dirty limit.
    pub is_stripe_too_large: bool,
    /// Contradictions, a sentence each.
    pub notes: Vec<String>,
}

impl ResolvedGeometry {
    /// Combines the settings with the geometry that the disk reports, `device`. A stripe of more
    /// than `stripe_bytes_max`, the dirty limit of a shard, is not used.
    pub fn new(config: &VolumeConfig, device: &DiskGeometry, stripe_bytes_max: u64) -> Self {
        let mut found = Self { geometry: *device, ..Default::default() };
        let source = |is_reported: bool| {
            if is_reported { GeometrySource::Device } else { GeometrySource::Unknown }
        };
        found.stripe_source = source(device.has_stripes());
        found.offset_source = source(device.has_stripes() && !device.offset_is_guess);
        found.chunk_source = source(device.chunk_bytes > 0);
        found.rotational_source = source(device.rotational.is_some());
        found.set_stripe(config, device);
        found.set_chunk(config, device);
        found.set_offset(config, device);
        if let Auto::Set(rotational) = config.rotational {
            found.geometry.rotational = Some(rotational);
            found.rotational_source = GeometrySource::Hand;
            if let Some(reported) = device.rotational {
                found.compare("rotational", yes_no(reported), yes_no(rotational));
            }
        }
        let stripe_bytes = found.geometry.stripe_bytes;
        found.is_stripe_too_large = stripe_bytes > stripe_bytes_max;
        if found.is_stripe_too_large {
            found.notes.push(format!(
                "a stripe of {} exceeds the dirty limit, {}: writes are not gathered into stripes; \
                 give more memory, or set stripe=none",
                Size(stripe_bytes),
                Size(stripe_bytes_max)
            ));
        }
        found
    }

    fn set_stripe(&mut self, config: &VolumeConfig, device: &DiskGeometry) {
        let Auto::Set(stripe_bytes) = config.stripe else { return };
        self.stripe_source = GeometrySource::Hand;
        if stripe_bytes == device.stripe_bytes {
            return;
        }
        self.geometry = device.without_stripes();
        // The disk's chunk and offset belong to its own stripes only.
        self.chunk_source = GeometrySource::Unknown;
        self.offset_source = GeometrySource::Unknown;
        if stripe_bytes == 0 {
            return;
        }
        self.geometry.stripe_bytes = stripe_bytes;
        self.geometry.optimal_bytes = stripe_bytes;
        // With only the width set, the first stripe begins at the start of the disk.
        self.offset_source = GeometrySource::Hand;
        if device.has_stripes() {
            self.compare("stripe", Size(device.stripe_bytes), Size(stripe_bytes));
        }
    }

    fn set_chunk(&mut self, config: &VolumeConfig, device: &DiskGeometry) {
        let Auto::Set(chunk_bytes) = config.chunk else { return };
        let stripe_bytes = self.geometry.stripe_bytes;
        if stripe_bytes == 0 {
            return self.lacks_stripes("chunk");
        }
        if !stripe_bytes.is_multiple_of(chunk_bytes) {
            self.notes.push(format!(
                "chunk={} does not divide the disk's stripe, {}, and is ignored: set stripe as \
                 well",
                Size(chunk_bytes),
                Size(stripe_bytes)
            ));
            return;
        }
        self.geometry.chunk_bytes = chunk_bytes;
        self.chunk_source = GeometrySource::Hand;
        if device.chunk_bytes > 0 {
            self.compare("chunk", Size(device.chunk_bytes), Size(chunk_bytes));
        }
    }

    fn set_offset(&mut self, config: &VolumeConfig, device: &DiskGeometry) {
        let is_guess = self.geometry.offset_is_guess;
        let Auto::Set(offset_bytes) = config.stripe_offset else {
            if is_guess {
                self.notes.push(format!(
                    "the stripe offset of the disk is unknown and assumed to be {}: set \
                     stripe-offset",
                    Size(self.geometry.offset_bytes)
                ));
            }
            return;
        };
        let stripe_bytes = self.geometry.stripe_bytes;
        if stripe_bytes == 0 {
            return self.lacks_stripes("stripe-offset");
        }
        let offset_bytes = offset_bytes % stripe_bytes;
        self.geometry.offset_bytes = offset_bytes;
        self.geometry.offset_is_guess = false;
        self.offset_source = GeometrySource::Hand;
        if stripe_bytes == device.stripe_bytes && !is_guess {
            self.compare("stripe-offset", Size(device.offset_bytes), Size(offset_bytes));
        }
    }

    /// The geometry to use: without stripes that exceed the dirty limit.
    pub fn used(&self) -> DiskGeometry {
        if self.is_stripe_too_large { self.geometry.without_stripes() } else { self.geometry }
    }

    /// Adds a note if the setting contradicts the disk.
    fn compare<T: fmt::Display + PartialEq>(&mut self, key: &str, device: T, set: T) {
        if device != set {
            self.notes.push(format!(
                "the disk reports {key}={device}, but {key}={set} is set by hand and takes effect: \
                 leave it out if the disk is right"
            ));
        }
    }

    fn lacks_stripes(&mut self, key: &str) {
        self.notes.push(format!(
            "{key} is set by hand, but the disk has no known stripes: set stripe as well"
        ));
    }
}

/// Checks that the settings are consistent.
pub(crate) fn check(config: &VolumeConfig) -> ConfigResult<()> {
    let fail = |message: String, remedy: &str| {
        Err(ConfigError::new(Mistake::Value, message, remedy.to_owned()))
    };
    let sizes = [
        ("stripe", config.stripe),
        ("chunk", config.chunk),
        ("stripe-offset", config.stripe_offset),
    ];
    for (key, bytes) in sizes.into_iter().filter_map(|(key, size)| Some((key, size.set()?))) {
        if !bytes.is_multiple_of(SECTOR_BYTES) {
            let message = format!("{key}={} is not a multiple of 512 bytes", Size(bytes));
            return fail(message, "write a size in whole sectors, as in 64KiB");
        }
        if bytes > STRIPE_BYTES_MAX {
            let message = format!("{key}={} is more than the maximum", Size(bytes));
            let remedy = format!("write a size of at most {}", Size(STRIPE_BYTES_MAX));
            return Err(ConfigError::new(Mistake::Limit, message, remedy));
        }
    }
    if config.chunk == Auto::Set(0) {
        return fail("chunk=0B is not a chunk size".into(), "write a size, or leave it out");
    }
    let Auto::Set(stripe) = config.stripe else { return Ok(()) };
    if stripe == 0 && (config.chunk.set().is_some() || config.stripe_offset.set().is_some()) {
        let message = "stripe=none, and chunk or stripe-offset is set";
        return fail(message.into(), "leave them out, or write stripe=SIZE");
    }
    if let Auto::Set(chunk) = config.chunk
        && !stripe.is_multiple_of(chunk)
    {
        let (stripe, chunk) = (Size(stripe), Size(chunk));
        let message = format!("stripe={stripe} is not a multiple of chunk={chunk}");
        return fail(message, "a stripe is the chunks of all drives, without parity");
    }
    if let Auto::Set(offset) = config.stripe_offset
        && offset >= stripe
    {
        let rest = Size(offset % stripe);
        let message =
            format!("stripe-offset={} is not below stripe={}", Size(offset), Size(stripe));
        return fail(message, &format!("write stripe-offset={rest}, which is equivalent"));
    }
    Ok(())
}

fn auto_or<T: Copy>(value: Auto<T>, show: impl Fn(T) -> String) -> String {
    value.set().map_or_else(|| "auto".to_owned(), show)
}

/// Formats `stripe`.
pub(crate) fn stripe_shown(width: &Auto<u64>) -> String {
    auto_or(*width, |bytes| if bytes == 0 { "none".to_owned() } else { Size(bytes).to_string() })
}

/// Formats a size or `auto`.
pub(crate) fn size_shown(size: &Auto<u64>) -> String {
    auto_or(*size, |bytes| Size(bytes).to_string())
}

/// Formats `rotational`.
pub(crate) fn rotational_shown(rotational: &Auto<bool>) -> String {
    auto_or(*rotational, |value| yes_no(value).to_owned())
}

/// Parses `stripe`.
pub(crate) fn stripe(key: &str, text: &str) -> ConfigResult<Auto<u64>> {
    match text {
        "none" => Ok(Auto::Set(0)),
        _ => match size(key, text)? {
            Auto::Set(0) => {
                let message = "stripe=0 is not a stripe width";
                Err(ConfigError::new(Mistake::Value, message, "write stripe=none for no stripes"))
            }
            width => Ok(width),
        },
    }
}

/// Parses a size or `auto`.
pub(crate) fn size(key: &str, text: &str) -> ConfigResult<Auto<u64>> {
    if text == "auto" {
        return Ok(Auto::Auto);
    }
    let none = if key == "stripe" { ", none" } else { "" };
    let message = || format!("{key}='{text}' is not a size");
    let remedy = || format!("write it like 64KiB or 1.5MiB{none}, or auto");
    words::size(text, message, remedy).map(|Size(bytes)| Auto::Set(bytes))
}

/// Parses `rotational`.
pub(crate) fn rotational(_: &str, text: &str) -> ConfigResult<Auto<bool>> {
    match text {
        "auto" => Ok(Auto::Auto),
        "yes" => Ok(Auto::Set(true)),
        "no" => Ok(Auto::Set(false)),
        _ => {
            let message = format!("invalid value '{text}' of rotational");
            Err(ConfigError::new(Mistake::Value, message, "use yes, no or auto"))
        }
    }
}

#[cfg(test)]
#[path = "geometry_tests.rs"]
mod tests;
