//! The checks that every backend must pass.
//!
//! [`check`] overwrites the first 8 MiB and the last sectors of a store. It panics at the first
//! failure, and names the store and the operation.

use crate::random::Random;
use crate::{AlignedBuffer, Backend, Blocking, Buffer, Io, IoKind, IoToken, IoWait};
use forebay_types::{ByteRange, IoResult};
use std::sync::Arc;

/// The part of the store that most checks use, in bytes.
const WINDOW_BYTES: u64 = 8 << 20;
/// I/Os in flight at one time.
const IN_FLIGHT: u64 = 64;
/// Steps of the random sequence.
const STEP_COUNT: u64 = 600;

/// Checks a store of at least 8 MiB that has no other user.
///
/// # Panics
/// If the store violates the contract of a backend.
pub fn check(backend: &Arc<dyn Backend>) {
    let suite = Suite::new(&**backend);
    suite.description();
    suite.sizes();
    suite.buffers();
    suite.last_sector();
    suite.stable_writes();
    suite.zeroes();
    suite.discards();
    suite.random_sequence();
    suite.in_flight();
    suite.extents();
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    blocking: Blocking<'a>,
    name: &'a str,
    size_bytes: u64,
    alignment: u64,
}

/// Pseudo-random bytes, determined by `seed`.
fn pattern(seed: u64, len: u64) -> AlignedBuffer {
    let mut random = Random::new(seed);
    let mut bytes = AlignedBuffer::new(len as usize);
    bytes.chunks_mut(8).for_each(|chunk| {
        let number = random.next().to_le_bytes();
        chunk.copy_from_slice(&number[..chunk.len()]);
    });
    bytes
}

impl<'a> Suite<'a> {
    fn new(backend: &'a dyn Backend) -> Self {
        let description = backend.description();
        Self {
            backend,
            blocking: Blocking::new(backend),
            name: &description.name,
            size_bytes: description.size_bytes(),
            alignment: u64::from(description.alignment_bytes),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let result = self.blocking.write(offset, bytes, false);
        assert_eq!(result, Ok(()), "{}: write {offset}+{}", self.name, bytes.len());
    }

    fn assert_reads(&self, offset: u64, expected: &[u8], after: &str) {
        // Filled, so that a read that transfers nothing is detected.
        let mut bytes = AlignedBuffer::new(expected.len());
        bytes.fill(0xA5);
        let result = self.blocking.read(offset, &mut bytes);
        let len = expected.len();
        assert_eq!(result, Ok(()), "{}: read {offset}+{len} after {after}", self.name);
        if let Some(index) = (0..len).find(|&index| bytes[index] != expected[index]) {
            let place = offset + index as u64;
            panic!("{}: byte {place} of read {offset}+{len} is wrong after {after}", self.name);
        }
    }

    fn description(&self) {
        let description = self.backend.description();
        assert!(!description.name.is_empty(), "the store has no name");
        assert!(self.size_bytes >= WINDOW_BYTES, "{}: the suite needs 8 MiB", self.name);
        assert!(
            self.size_bytes.is_multiple_of(512),
            "{}: size is not a multiple of 512",
            self.name
        );
        assert!(matches!(self.alignment, 512 | 4096), "{}: alignment", self.name);
        assert!(!description.read_only, "{}: the suite needs a writable store", self.name);
    }

    /// Reads back writes of many sizes at many places.
    fn sizes(&self) {
        for (number, len) in [1, 2, 3, 7, 8, 9, 64, 129, 1024, 2048].into_iter().enumerate() {
            let len = len * self.alignment;
            for skip in [0, 1, 5] {
                let bytes = pattern(number as u64 * 10 + skip, len.min(WINDOW_BYTES / 2));
                let offset = skip * self.alignment + number as u64 * (64 << 10);
                self.write(offset, &bytes);
                self.assert_reads(offset, &bytes, "a write of the same range");
            }
        }
    }

    /// Transfers one range with more buffers than one system call accepts, of different sizes.
    fn buffers(&self) {
        let mut random = Random::new(3);
        let units: Vec<u64> = (0..1100).map(|_| 1 + random.below(3)).collect();
        let len = units.iter().sum::<u64>() * self.alignment;
        if len > WINDOW_BYTES {
            return self.few_buffers();
        }
        let bytes = pattern(4, len);
        let mut rest = &bytes[..];
        let slices: Vec<&[u8]> = units
            .iter()
            .map(|units| rest.split_off(..(units * self.alignment) as usize).unwrap_or_default())
            .collect();
        let result = self.blocking.write_vectored(0, &slices, false);
        assert_eq!(result, Ok(()), "{}: a write of 1100 buffers", self.name);
        self.assert_reads(0, &bytes, "a write of 1100 buffers");
        let mut back = AlignedBuffer::new(len as usize);
        let mut rest = &mut back[..];
        let mut slices: Vec<&mut [u8]> = units
            .iter()
            .rev()
            .map(|units| {
                rest.split_off_mut(..(units * self.alignment) as usize).unwrap_or_default()
            })
            .collect();
        let result = self.blocking.read_vectored(0, &mut slices);
        assert_eq!(result, Ok(()), "{}: a read of 1100 buffers", self.name);
        assert!(back[..] == bytes[..], "{}: a read of 1100 buffers is wrong", self.name);
    }

    /// The same for a store with blocks so large that 1100 buffers exceed the window.
    fn few_buffers(&self) {
        let bytes = pattern(4, 6 * self.alignment);
        let (first, second) = bytes.split_at(self.alignment as usize);
        let result = self.blocking.write_vectored(0, &[first, second], false);
        assert_eq!(result, Ok(()), "{}: a write of two buffers", self.name);
        self.assert_reads(0, &bytes, "a write of two buffers");
    }

    fn last_sector(&self) {
        let bytes = pattern(5, self.alignment);
        let offset = self.size_bytes - self.alignment;
        self.write(offset, &bytes);
        self.assert_reads(offset, &bytes, "a write of the last sector");
    }

    fn stable_writes(&self) {
        let bytes = pattern(6, 16 << 10);
        let result = self.blocking.write(32 << 10, &bytes, true);
        assert_eq!(result, Ok(()), "{}: a FUA write", self.name);
        assert_eq!(self.blocking.flush(), Ok(()), "{}: flush", self.name);
        assert_eq!(self.blocking.flush(), Ok(()), "{}: flush of nothing", self.name);
        self.assert_reads(32 << 10, &bytes, "a FUA write and a flush");
    }

    fn zeroes(&self) {
        for unmap in [false, true] {
            let mut expected = pattern(7, 1 << 20);
            self.write(0, &expected);
            // An aligned range, and one with both ends inside a page if the alignment permits.
            for (offset, len) in [(256 << 10, 64 << 10), (self.alignment, 300 << 10)] {
                let result = self.blocking.zero(offset, len, unmap);
                assert_eq!(result, Ok(()), "{}: zero {offset}+{len}", self.name);
                expected[offset as usize..(offset + len) as usize].fill(0);
                self.assert_reads(0, &expected, "zeroing a part");
            }
        }
    }

    /// The content of a discarded range is undefined; its neighbours and later writes are not
    /// affected.
    fn discards(&self) {
        let bytes = pattern(8, 1 << 20);
        self.write(0, &bytes);
        let (from, to) = (128 << 10, 512 << 10);
        let result = self.blocking.discard(from, to - from);
        assert_eq!(result, Ok(()), "{}: discard", self.name);
        self.assert_reads(0, &bytes[..from as usize], "a discard after this range");
        self.assert_reads(to, &bytes[to as usize..], "a discard before this range");
        let again = pattern(9, 64 << 10);
        self.write(200 << 10, &again);
        self.assert_reads(200 << 10, &again, "a discard and a write");
    }

    /// Overlapping writes, zeroes, discards, flushes and reads in sequence, compared with a copy.
    fn random_sequence(&self) {
        let mut random = Random::new(10);
        let mut copy = pattern(11, 2 << 20);
        self.write(0, &copy);
        let unit_count = copy.len() as u64 / self.alignment;
        for step in 0..STEP_COUNT {
            let first = random.below(unit_count);
            let longest = if random.below(10) == 0 { 256 } else { 16 };
            let count = (1 + random.below(longest)).min(unit_count - first);
            let (offset, len) = (first * self.alignment, count * self.alignment);
            let range = offset as usize..(offset + len) as usize;
            match random.below(16) {
                0..=6 => {
                    let bytes = pattern(1000 + step, len);
                    let result = self.blocking.write(offset, &bytes, step % 64 == 0);
                    assert_eq!(result, Ok(()), "{}: write {offset}+{len}", self.name);
                    copy[range].copy_from_slice(&bytes);
                }
                7 | 8 => {
                    let result = self.blocking.zero(offset, len, random.below(2) == 0);
                    assert_eq!(result, Ok(()), "{}: zero {offset}+{len}", self.name);
                    copy[range].fill(0);
                }
                9 => {
                    let result = self.blocking.discard(offset, len);
                    assert_eq!(result, Ok(()), "{}: discard {offset}+{len}", self.name);
                    // The content is undefined: adopt what is read now.
                    let result = self.blocking.read(offset, &mut copy[range]);
                    assert_eq!(result, Ok(()), "{}: read of a discarded range", self.name);
                }
                10 if step % 4 == 0 => {
                    assert_eq!(self.blocking.flush(), Ok(()), "{}: flush", self.name);
                }
                _ => self.assert_reads(offset, &copy[range], "random operations"),
            }
        }
        self.assert_reads(0, &copy, "all random operations");
    }

    /// Many concurrent I/Os in disjoint ranges.
    fn in_flight(&self) {
        let len = (WINDOW_BYTES / IN_FLIGHT / 2) & !(self.alignment - 1);
        let mut written: Vec<AlignedBuffer> =
            (0..IN_FLIGHT).map(|tag| pattern(100 + tag, len)).collect();
        let results = self.submit_all(IoKind::Write { fua: false }, &mut written);
        assert!(results.iter().all(Result::is_ok), "{}: 64 writes at once", self.name);
        let mut back: Vec<AlignedBuffer> =
            (0..IN_FLIGHT).map(|_| AlignedBuffer::new(len as usize)).collect();
        let results = self.submit_all(IoKind::Read, &mut back);
        assert!(results.iter().all(Result::is_ok), "{}: 64 reads at once", self.name);
        for (tag, (written, back)) in written.iter().zip(&back).enumerate() {
            assert!(written[..] == back[..], "{}: read {tag} of 64 is wrong", self.name);
        }
    }

    /// Submits an I/O for each buffer, spaced at twice its length, in scrambled order.
    fn submit_all(&self, kind: IoKind, buffers: &mut [AlignedBuffer]) -> Vec<IoResult> {
        let wait = IoWait::new(buffers.len());
        for (tag, buffer) in buffers.iter_mut().enumerate() {
            let len = buffer.len() as u64;
            let place = (tag as u64 * 37) % IN_FLIGHT;
            // SAFETY: the buffers are borrowed until all I/Os are answered, a few lines below.
            let buffers = vec![unsafe { Buffer::new(buffer.as_mut_ptr(), buffer.len()) }];
            let done = IoToken::new(wait.clone(), tag as u64);
            self.backend.submit(Io {
                kind,
                offset: place * 2 * len,
                len,
                buffers: buffers.into(),
                done,
            });
        }
        wait.all()
    }

    /// Extents cover the requested range, and zero extents read as zeroes.
    fn extents(&self) {
        let result = self.blocking.zero(1 << 20, 1 << 20, true);
        assert_eq!(result, Ok(()), "{}: zero", self.name);
        self.write((1 << 20) + (512 << 10), &pattern(12, 64 << 10));
        let range = ByteRange::new(self.alignment, (4 << 20) - self.alignment);
        let mut offset = range.offset;
        for extent in self.backend.extents(range) {
            assert!(extent.len > 0, "{}: an empty extent", self.name);
            let start = offset.next_multiple_of(self.alignment);
            let end = (offset + extent.len) / self.alignment * self.alignment;
            if extent.zero && start < end {
                let zeroes = vec![0; (end - start) as usize];
                self.assert_reads(start, &zeroes, "an extent reported as zero");
            }
            offset += extent.len;
        }
        assert_eq!(offset, range.end(), "{}: extents do not cover the range", self.name);
    }
}
