//! The kernel's counters of a block device.

use super::Roots;
use forebay_advice::Load;
use std::io;

/// The unit of these counters, whatever the device's sector size.
const SECTOR_BYTES: u64 = 512;

/// The counters since the device appeared, from its file `stat`. The kernel's documentation
/// numbers the fields from one (`Documentation/block/stat.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    reads: u64,
    read_sectors: u64,
    read_ms: u64,
    writes: u64,
    write_sectors: u64,
    write_ms: u64,
    busy_ms: u64,
    flushes: u64,
}

impl Counters {
    /// Reads the counters of a device.
    pub(super) fn read(roots: &Roots, name: &str) -> io::Result<Self> {
        let path = roots.sys.join("class/block").join(name).join("stat");
        let text = std::fs::read_to_string(path)?;
        Self::parse(&text).ok_or_else(|| io::Error::other("its counters have an unknown form"))
    }

    fn parse(text: &str) -> Option<Self> {
        let fields: Option<Vec<u64>> =
            text.split_ascii_whitespace().map(|field| field.parse().ok()).collect();
        let fields = fields?;
        let field = |number: usize| fields.get(number - 1).copied();
        Some(Self {
            reads: field(1)?,
            read_sectors: field(3)?,
            read_ms: field(4)?,
            writes: field(5)?,
            write_sectors: field(7)?,
            write_ms: field(8)?,
            busy_ms: field(10)?,
            // Since Linux 5.5.
            flushes: field(16).unwrap_or(0),
        })
    }

    /// The counts since `before`. A counter that has decreased, because the device was replaced,
    /// counts as zero.
    pub(super) fn since(self, before: Self) -> Load {
        Load {
            seconds: 0.0,
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            flushes: self.flushes.saturating_sub(before.flushes),
            read_bytes: bytes(self.read_sectors, before.read_sectors),
            write_bytes: bytes(self.write_sectors, before.write_sectors),
            read_wait_ms: self.read_ms.saturating_sub(before.read_ms),
            write_wait_ms: self.write_ms.saturating_sub(before.write_ms),
            busy_ms: self.busy_ms.saturating_sub(before.busy_ms),
        }
    }
}

fn bytes(sectors: u64, before: u64) -> u64 {
    sectors.saturating_sub(before).saturating_mul(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_documentation() {
        let text = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let counters = Counters::parse(text).unwrap();
        let load = counters.since(Counters::default());
        assert_eq!((load.reads, load.read_bytes, load.read_wait_ms), (1, 3 * 512, 4));
        assert_eq!((load.writes, load.write_bytes, load.write_wait_ms), (5, 7 * 512, 8));
        assert_eq!((load.busy_ms, load.flushes), (10, 16));
        let old = Counters::parse("1 2 3 4 5 6 7 8 9 10 11").unwrap();
        assert_eq!(old.flushes, 0);
        assert_eq!(old.since(counters), Load::default(), "they went back");
    }

    #[test]
    fn other_forms_are_refused() {
        for text in ["", "1 2 3", "a b c d e f g h i j k", "1 2 3 4 5 6 7 8 9 -10 11"] {
            assert_eq!(Counters::parse(text), None, "{text}");
        }
    }
}
