//! The names of objects below the prefix of a volume.

use std::fmt;

/// The name of the manifest.
pub const fn manifest_name() -> &'static str {
    "manifest"
}

/// The name of a part of the checkpoint of an epoch after an object.
pub fn checkpoint_name(epoch: u64, covers: u64, part: u32) -> String {
    format!("map/{epoch:016x}-{covers:016x}/{part:08x}")
}

/// Epoch and last object of the checkpoint that a part with this name belongs to.
pub fn checkpoint_of(name: &str) -> Option<(u64, u64)> {
    let (of, _) = name.strip_prefix("map/")?.split_once('/')?;
    let (epoch, covers) = of.split_once('-')?;
    Some((hexadecimal(epoch)?, hexadecimal(covers)?))
}

/// The name of an object with data, or of a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The epoch in which it was written.
    pub epoch: u64,
    /// Its place in the order of all objects.
    pub number: u64,
}

impl ObjectName {
    /// Reads a name below the prefix.
    pub fn parse(name: &str) -> Option<Self> {
        let (epoch, number) = name.split_once('/')?;
        Some(Self { epoch: hexadecimal(epoch)?, number: hexadecimal(number)? })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}/{:016x}", self.epoch, self.number)
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    let is_plain = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}
