//! What the operator says of a disk's geometry, and what comes of that and of what the disk says.
//!
//! Nothing has to be said: a disk is taken at its word. What is said by hand wins, as a disk may
//! be wrong; where the two differ, that is shown as long as it lasts and is no error.

use crate::{ConfigError, ConfigResult, Mistake, VolumeSpec, words::yes_no};
use forebay_types::{DiskGeometry, SECTOR_BYTES, Size, limits::STRIPE_BYTES_MAX};
use std::fmt;

/// What the disk says, or what the operator does in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Auto<T> {
    /// The disk is to say it.
    #[default]
    Auto,
    /// The operator has said it.
    Set(T),
}

impl<T: Copy> Auto<T> {
    /// What the operator has said.
    pub fn set(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Set(value) => Some(value),
        }
    }
}

/// What is said by hand of the geometry of a volume's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct GeometrySpec {
    /// Data in a full stripe, in bytes; zero for no stripes.
    pub stripe: Auto<u64>,
    /// What of a stripe lies on one disk, in bytes.
    pub chunk: Auto<u64>,
    /// Where the first stripe begins, in bytes from the first of the volume.
    pub offset: Auto<u64>,
    /// Whether seeks cost.
    pub rotational: Auto<bool>,
}

/// What of that is to change; what is `None` stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct GeometryChange {
    /// See [`GeometrySpec::stripe`].
    pub stripe: Option<Auto<u64>>,
    /// See [`GeometrySpec::chunk`].
    pub chunk: Option<Auto<u64>>,
    /// See [`GeometrySpec::offset`].
    pub offset: Option<Auto<u64>>,
    /// See [`GeometrySpec::rotational`].
    pub rotational: Option<Auto<bool>>,
}

/// Who says a part of the geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum GeometrySource {
    /// The disk, or the system of it.
    Device,
    /// The operator.
    Hand,
    /// Nobody.
    #[default]
    Unknown,
}

/// What the geometry of a volume's disk is taken to be, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ResolvedGeometry {
    /// The geometry.
    pub geometry: DiskGeometry,
    /// Who says how wide stripes are.
    pub stripe_source: GeometrySource,
    /// Who says how deep they are.
    pub chunk_source: GeometrySource,
    /// Who says where they begin.
    pub offset_source: GeometrySource,
    /// Who says whether seeks cost.
    pub rotational_source: GeometrySource,
    /// Whether a stripe is so large that it could not be dirty as a whole.
    pub is_stripe_too_large: bool,
    /// What does not fit together, a sentence each.
    pub notes: Vec<String>,
}

impl GeometrySpec {
    /// The geometry of a disk that says `device` of itself, when at most `stripe_bytes_max` can be
    /// dirty.
    pub fn resolve(&self, device: &DiskGeometry, stripe_bytes_max: u64) -> ResolvedGeometry {
        let mut found = ResolvedGeometry { geometry: *device, ..Default::default() };
        let said = |is_said: bool| {
            if is_said { GeometrySource::Device } else { GeometrySource::Unknown }
        };
        found.stripe_source = said(device.has_stripes());
        found.offset_source = said(device.has_stripes() && !device.offset_is_guess);
        found.chunk_source = said(device.chunk_bytes > 0);
        found.rotational_source = said(device.rotational.is_some());
        self.set_stripe(device, &mut found);
        self.set_chunk(device, &mut found);
        self.set_offset(device, &mut found);
        if let Auto::Set(rotational) = self.rotational {
            found.geometry.rotational = Some(rotational);
            found.rotational_source = GeometrySource::Hand;
            if let Some(theirs) = device.rotational {
                found.compare("rotational", yes_no(theirs), yes_no(rotational));
            }
        }
        let stripe_bytes = found.geometry.stripe_bytes;
        found.is_stripe_too_large = stripe_bytes > stripe_bytes_max;
        if found.is_stripe_too_large {
            found.notes.push(format!(
                "a stripe of {} is larger than what may be dirty, {}: writes are not gathered into \
                 stripes; give more memory, or set stripe=none",
                Size(stripe_bytes),
                Size(stripe_bytes_max)
            ));
        }
        found
    }

    fn set_stripe(&self, device: &DiskGeometry, found: &mut ResolvedGeometry) {
        let Auto::Set(stripe_bytes) = self.stripe else { return };
        found.stripe_source = GeometrySource::Hand;
        if stripe_bytes == device.stripe_bytes {
            return;
        }
        found.geometry = device.without_stripes();
        // A disk says nothing of stripes that are not its own.
        found.chunk_source = GeometrySource::Unknown;
        found.offset_source = GeometrySource::Unknown;
        if stripe_bytes == 0 {
            return;
        }
        found.geometry.stripe_bytes = stripe_bytes;
        found.geometry.optimal_bytes = stripe_bytes;
        // Who sets the width alone means that stripes begin with the disk.
        found.offset_source = GeometrySource::Hand;
        if device.has_stripes() {
            found.compare("stripe", Size(device.stripe_bytes), Size(stripe_bytes));
        }
    }

    fn set_chunk(&self, device: &DiskGeometry, found: &mut ResolvedGeometry) {
        let Auto::Set(chunk_bytes) = self.chunk else { return };
        let stripe_bytes = found.geometry.stripe_bytes;
        if stripe_bytes == 0 {
            return found.lacks_stripes("chunk");
        }
        if !stripe_bytes.is_multiple_of(chunk_bytes) {
            found.notes.push(format!(
                "chunk={} does not divide the stripe of its disk, {}, and is not taken: set stripe \
                 as well",
                Size(chunk_bytes),
                Size(stripe_bytes)
            ));
            return;
        }
        found.geometry.chunk_bytes = chunk_bytes;
        found.chunk_source = GeometrySource::Hand;
        if device.chunk_bytes > 0 {
            found.compare("chunk", Size(device.chunk_bytes), Size(chunk_bytes));
        }
    }

    fn set_offset(&self, device: &DiskGeometry, found: &mut ResolvedGeometry) {
        let is_guess = found.geometry.offset_is_guess;
        let Auto::Set(offset_bytes) = self.offset else {
            if is_guess {
                found.notes.push(format!(
                    "where its stripes begin is not known and taken to be {}: set stripe-offset",
                    Size(found.geometry.offset_bytes)
                ));
            }
            return;
        };
        let stripe_bytes = found.geometry.stripe_bytes;
        if stripe_bytes == 0 {
            return found.lacks_stripes("stripe-offset");
        }
        let offset_bytes = offset_bytes % stripe_bytes;
        found.geometry.offset_bytes = offset_bytes;
        found.geometry.offset_is_guess = false;
        found.offset_source = GeometrySource::Hand;
        if stripe_bytes == device.stripe_bytes && !is_guess {
            found.compare("stripe-offset", Size(device.offset_bytes), Size(offset_bytes));
        }
    }

    /// Whether what is said goes together.
    fn check(&self) -> ConfigResult<()> {
        let fail = |message: String, remedy: &str| {
            Err(ConfigError::new(Mistake::Value, message, remedy.to_owned()))
        };
        let sizes =
            [("stripe", self.stripe), ("chunk", self.chunk), ("stripe-offset", self.offset)];
        for (key, bytes) in sizes.into_iter().filter_map(|(key, size)| Some((key, size.set()?))) {
            if !bytes.is_multiple_of(SECTOR_BYTES) {
                let message = format!("{key}={} is no multiple of 512 bytes", Size(bytes));
                return fail(message, "write a size in whole sectors, as in 64KiB");
            }
            if bytes > STRIPE_BYTES_MAX {
                let message = format!("{key}={} is more than any disk has", Size(bytes));
                let remedy = format!("write a size of at most {}", Size(STRIPE_BYTES_MAX));
                return Err(ConfigError::new(Mistake::Limit, message, remedy));
            }
        }
        if self.chunk == Auto::Set(0) {
            return fail("chunk=0B is no size of a chunk".into(), "write a size, or leave it out");
        }
        let Auto::Set(stripe) = self.stripe else { return Ok(()) };
        if stripe == 0 && (self.chunk.set().is_some() || self.offset.set().is_some()) {
            let message = "stripe=none, and chunk or stripe-offset is set";
            return fail(message.into(), "leave those out, or write stripe=SIZE");
        }
        if let Auto::Set(chunk) = self.chunk
            && !stripe.is_multiple_of(chunk)
        {
            let (stripe, chunk) = (Size(stripe), Size(chunk));
            let message = format!("stripe={stripe} is no multiple of chunk={chunk}");
            return fail(message, "a stripe is the chunks of all disks, without those of parity");
        }
        if let Auto::Set(offset) = self.offset
            && offset >= stripe
        {
            let rest = Size(offset % stripe);
            let message =
                format!("stripe-offset={} is not below stripe={}", Size(offset), Size(stripe));
            return fail(message, &format!("write stripe-offset={rest}, which means the same"));
        }
        Ok(())
    }
}

impl ResolvedGeometry {
    /// What there is to go by: without stripes that are too large to be gathered.
    pub fn used(&self) -> DiskGeometry {
        if self.is_stripe_too_large { self.geometry.without_stripes() } else { self.geometry }
    }

    /// Notes where disk and operator say different things.
    fn compare<T: fmt::Display + PartialEq>(&mut self, key: &str, device: T, set: T) {
        if device != set {
            self.notes.push(format!(
                "its disk says {key}={device}, and {key}={set} is set by hand, which is taken: \
                 leave it out if the disk is right"
            ));
        }
    }

    fn lacks_stripes(&mut self, key: &str) {
        self.notes.push(format!(
            "{key} is set by hand, and no stripes of its disk are known: set stripe as well"
        ));
    }
}

fn auto_or<T: Copy>(value: Auto<T>, show: impl Fn(T) -> String) -> String {
    value.set().map_or_else(|| "auto".to_owned(), show)
}

/// Shows the width of stripes as it is read.
pub(crate) fn stripe_shown(width: &Auto<u64>) -> String {
    auto_or(*width, |bytes| if bytes == 0 { "none".to_owned() } else { Size(bytes).to_string() })
}

/// Shows a size that the disk may say as it is read.
pub(crate) fn size_shown(size: &Auto<u64>) -> String {
    auto_or(*size, |bytes| Size(bytes).to_string())
}

/// Shows whether seeks cost as it is read.
pub(crate) fn rotational_shown(is: &Auto<bool>) -> String {
    auto_or(*is, |is| yes_no(is).to_owned())
}

impl VolumeSpec {
    pub(crate) fn check_geometry(&self) -> ConfigResult<()> {
        self.geometry.check()
    }
}

/// Reads the width of stripes.
pub(crate) fn stripe(key: &str, text: &str) -> ConfigResult<Auto<u64>> {
    match text {
        "none" => Ok(Auto::Set(0)),
        _ => match size(key, text)? {
            Auto::Set(0) => {
                let message = "stripe=0 is no width";
                Err(ConfigError::new(Mistake::Value, message, "write stripe=none for no stripes"))
            }
            width => Ok(width),
        },
    }
}

/// Reads a size that the disk may say.
pub(crate) fn size(key: &str, text: &str) -> ConfigResult<Auto<u64>> {
    if text == "auto" {
        return Ok(Auto::Auto);
    }
    let none = if key == "stripe" { ", none" } else { "" };
    text.parse().map(|Size(bytes)| Auto::Set(bytes)).map_err(|_| {
        let message = format!("{key}='{text}' is no size");
        ConfigError::new(
            Mistake::Value,
            message,
            format!("write it like 64KiB or 1.5MiB{none}, or auto"),
        )
    })
}

/// Reads whether seeks cost.
pub(crate) fn rotational(_: &str, text: &str) -> ConfigResult<Auto<bool>> {
    match text {
        "auto" => Ok(Auto::Auto),
        "yes" => Ok(Auto::Set(true)),
        "no" => Ok(Auto::Set(false)),
        _ => {
            let message = format!("no value '{text}' of rotational");
            Err(ConfigError::new(Mistake::Value, message, "use yes, no or auto"))
        }
    }
}

#[cfg(test)]
#[path = "geometry_tests.rs"]
mod tests;
