//! The devices of a journal: one, or two that mirror each other.
//!
//! Opening reads both, decides which of them are members ([`forebay_journal::recover_mirrored`]),
//! and carries out the steps that make the other one a member again. Afterwards each write goes to
//! all members in parallel, and the log gets the result of each.

use super::ahead::ReadAhead;
use super::{JournalError, JournalSettings, recovery};
use crate::platform::locks::assert_may_wait;
use forebay_backend::{AlignedBuffer, Backend, Blocking};
use forebay_format::journal::{
    BLOCK_BYTES, Geometry, JournalId, LOG_OFFSET, SUPERBLOCK_BYTES, Superblock, SuperblockInvalid,
};
use forebay_journal::{
    Found, Log, LogWrite, MirrorDevice, MirrorStep, ReadAt, RecoverError, RecoveredLog, recover,
    recover_mirrored,
};
use forebay_types::{Fault, IoError, IoResult};
use std::io;
use std::sync::Arc;

/// Bytes of the log copied per I/O.
const COPY_BYTES: u64 = 1 << 20;

/// The durable record, outside of the journals, of their members. It is updated before a write is
/// acknowledged without one of the devices.
pub trait MemberRecord: Send + Sync {
    /// The recorded members of a journal.
    fn members(&self, journal: JournalId) -> Vec<u64>;

    /// Replaces the recorded members durably.
    fn record(&self, journal: JournalId, members: &[u64]) -> io::Result<()>;
}

/// The open devices of a journal.
pub(crate) struct Devices {
    backends: [Option<Arc<dyn Backend>>; 2],
    names: [String; 2],
    /// Bytes of the smaller device.
    size_bytes: u64,
    /// Why one device has not been a member since the start.
    missing: Option<String>,
    is_mirrored: bool,
    /// The devices that hold the log as it was when it was opened.
    readable: [bool; 2],
}

/// An open log, and the records found in it.
pub(super) type Opened<W> = (Log<AlignedBuffer, W>, Found);

/// A device whose log is being walked. Sequential reads are served from read-ahead.
pub(super) struct Device<'a> {
    backend: &'a dyn Backend,
    ahead: ReadAhead<'a>,
    /// The start and end of the last read.
    last: (u64, u64),
}

impl<'a> Device<'a> {
    pub(super) fn new(backend: &'a dyn Backend) -> Self {
        Self { backend, ahead: ReadAhead::new(backend), last: (u64::MAX, 0) }
    }
}

impl ReadAt for Device<'_> {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let follows = (self.last.0..=self.last.1).contains(&position);
        self.last = (position, position + buffer.len() as u64);
        // If the read-ahead fails, the bad block may lie outside of this buffer.
        if follows && self.ahead.read(position, buffer).is_ok() {
            return Ok(());
        }
        let mut bytes = AlignedBuffer::new(buffer.len());
        Blocking::new(self.backend).read(position, &mut bytes)?;
        buffer.copy_from_slice(&bytes);
        Ok(())
    }
}

impl Devices {
    pub(super) fn new(settings: &JournalSettings) -> Self {
        let backend = Arc::clone(&settings.backend);
        let size = |backend: &Arc<dyn Backend>| backend.description().size_bytes();
        let mut devices = Self {
            names: [backend.description().name.clone(), String::new()],
            size_bytes: size(&backend),
            backends: [Some(backend), None],
            missing: None,
            is_mirrored: settings.mirror.is_some(),
            readable: [true, false],
        };
        match &settings.mirror {
            Some(Ok(backend)) => {
                devices.names[1].clone_from(&backend.description().name);
                devices.size_bytes = devices.size_bytes.min(size(backend));
                devices.backends[1] = Some(Arc::clone(backend));
            }
            Some(Err(missing)) => {
                devices.names[1].clone_from(&missing.name);
                devices.missing = Some(missing.with_causes());
            }
            None => {}
        }
        devices
    }

    /// Bytes of the smaller device.
    pub(super) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The name of the journal: the names of its devices.
    pub(super) fn name(&self) -> String {
        if self.is_mirrored { self.names.join(" and ") } else { self.names[0].clone() }
    }

    pub(crate) fn name_of(&self, device: usize) -> &str {
        &self.names[device]
    }

    /// The name of a read-only device, if there is one.
    pub(super) fn read_only(&self) -> Option<&str> {
        let is_read_only = |backend: &Arc<dyn Backend>| backend.description().read_only;
        let at =
            self.backends.iter().position(|backend| backend.as_ref().is_some_and(is_read_only));
        at.map(|at| self.name_of(at))
    }

    /// The name and block size of a device whose blocks are larger than the log's.
    pub(super) fn with_large_blocks(&self) -> Option<(&str, u32)> {
        let block_bytes = |device: usize| {
            self.backends[device].as_ref().map_or(0, |b| b.description().alignment_bytes)
        };
        let at = (0..2).find(|&device| u64::from(block_bytes(device)) > BLOCK_BYTES)?;
        Some((self.name_of(at), block_bytes(at)))
    }

    /// Why one device has not been a member since the start, if so.
    pub(super) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Writes to all members in parallel.
    pub(super) fn write(&self, write: &LogWrite<AlignedBuffer>) -> [IoResult; 2] {
        let mut copies = Vec::new();
        let targets: Vec<usize> = (0..2).filter(|&device| write.goes_to(device)).collect();
        // A device that is not written to counts as successful below.
        assert!(!targets.is_empty(), "a log without a device writes nothing");
        assert_may_wait();
        if write.batch().is_none() {
            let copy = |&device: &usize| AlignedBuffer::from(write.bytes_for(device));
            copies = targets.iter().map(copy).collect();
        }
        let writes: Vec<(&dyn Backend, &[u8])> = targets
            .iter()
            .enumerate()
            .map(|(at, &device)| {
                let backend = self.backends[device].as_deref().expect("it is a member");
                (backend, write.batch().unwrap_or_else(|| &copies[at]))
            })
            .collect();
        let answers = Blocking::write_each(&writes, write.position, true);
        assert_eq!(answers.len(), targets.len(), "each device answers");
        let mut results = [Ok(()); 2];
        for (device, answer) in targets.into_iter().zip(answers) {
            results[device] = answer;
        }
        results
    }

    /// Reads from the first device on which the read succeeds.
    pub(super) fn read(&self, position: u64, bytes: &mut [u8]) -> IoResult {
        let mut result = Err(IoError::Io);
        for device in (0..2).filter(|&device| self.readable[device]) {
            let backend = self.backends[device].as_deref().expect("a readable device is open");
            result = Blocking::new(backend).read(position, bytes);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    pub(crate) fn backend(&self, device: usize) -> Option<&dyn Backend> {
        self.backends[device].as_deref()
    }

    /// Reads whole blocks from one device. Fails if the device was not a member at the start.
    pub(crate) fn read_on(
        &self,
        device: usize,
        position: u64,
        len: u64,
    ) -> Result<AlignedBuffer, IoError> {
        if !self.readable[device] {
            return Err(IoError::Io);
        }
        let mut bytes = AlignedBuffer::new(len as usize);
        self.on(device).read(position, &mut bytes)?;
        Ok(bytes)
    }

    /// Walks the log on one device.
    pub(crate) fn walk(&self, device: usize) -> Result<Found, RecoverError> {
        let backend = self.backends[device].as_deref().expect("it is a member");
        recover(&mut Device::new(backend), self.size_bytes)
    }

    fn on(&self, device: usize) -> Blocking<'_> {
        Blocking::new(self.backends[device].as_deref().expect("it is there"))
    }

    /// Opens the journal, or formats one where the devices begin with zeroes.
    pub(super) fn open<W>(
        &mut self,
        settings: &JournalSettings,
        geometry: Geometry,
        buffers: impl Fn() -> Vec<AlignedBuffer>,
    ) -> Result<Opened<W>, JournalError> {
        let name = self.name();
        let found = if self.is_mirrored {
            self.open_mirrored(settings)?
        } else {
            let backend = self.backends[0].as_deref().expect("the first one is there");
            match recover(&mut Device::new(backend), self.size_bytes) {
                Ok(found) if found.superblock.members.own != 0 => self.open_mirrored(settings)?,
                Ok(found) => Some(found),
                Err(RecoverError::Superblock(SuperblockInvalid::Foreign)) => None,
                Err(error) => return Err(JournalError::Unusable { name, error }),
            }
        };
        let Some(mut found) = found else { return self.format(settings, geometry, buffers()) };
        let abandoned = (settings.is_abandoned)(found.superblock.journal);
        if abandoned.is_settled() && recovery::is_void(&found, &abandoned) {
            self.erase()?;
            return self.format(settings, geometry, buffers());
        }
        recovery::drop_void_records(&name, &mut found, &abandoned, settings.accept_loss)?;
        let log = Log::resume(&found, buffers());
        Ok((log.map_err(|error| JournalError::Log { name, error })?, found))
    }

    fn open_mirrored(&mut self, settings: &JournalSettings) -> Result<Option<Found>, JournalError> {
        let drawn = draw_member_numbers(&self.name())?;
        let is_on_record = |journal, member| settings.members.members(journal).contains(&member);
        let mut devices = self.backends.each_ref().map(|backend| {
            backend.as_deref().map(|backend| (Device::new(backend), backend.description()))
        });
        let halves = devices.each_mut().map(|device| {
            let (device, description) = device.as_mut()?;
            Some(MirrorDevice { device, size_bytes: description.size_bytes() })
        });
        let recovered = recover_mirrored(halves, drawn, &is_on_record, settings.accept_loss);
        let Some(mut recovered) = recovered.map_err(|error| self.unusable(error))? else {
            return Ok(None);
        };
        let journal = recovered.found.superblock.journal;
        let abandoned = (settings.is_abandoned)(journal);
        if recovery::is_void(&recovered.found, &abandoned) {
            if abandoned.is_settled() {
                return self.erase().map(|()| None);
            }
            return Err(JournalError::Abandoned { name: self.name(), id: journal });
        }
        self.run_steps(&mut recovered, settings)?;
        recovered.complete_rebuild(drawn);
        self.readable = recovered.in_sync();
        if let Some(at) = self.readable.iter().position(|counts| !counts)
            && self.missing.is_none()
            && self.is_mirrored
        {
            self.missing = Some(format!("{} cannot be read", self.name_of(at)));
        }
        if let Some(reason) = &self.missing {
            let name = self.name();
            tracing::warn!(journal = %name, reason, "journal degraded, continuing on one device");
        }
        Ok(Some(recovered.found))
    }

    /// Carries out the steps of a recovery. A device that a step cannot write is left out.
    fn run_steps(
        &mut self,
        recovered: &mut RecoveredLog,
        settings: &JournalSettings,
    ) -> Result<(), JournalError> {
        let journal = recovered.found.superblock.journal;
        if recovered.lag_count() > 0 {
            let (name, batches) = (self.name(), recovered.lag_count());
            tracing::warn!(journal = %name, batches, "copying batches that one device lacks");
        }
        if let Some(device) = recovered.rebuild_target() {
            let device = self.name_of(device);
            tracing::warn!(journal = %self.name(), device, "rebuilding journal device");
        }
        'again: loop {
            for step in recovered.steps() {
                let Err((device, error)) = self.run_step(&step, journal, settings)? else {
                    continue;
                };
                if !recovered.remove_device(device) {
                    return Err(JournalError::Io { name: self.name(), error });
                }
                let name = self.name_of(device);
                tracing::error!(device = name, %error, "journal device cannot be written");
                self.missing = Some(format!("{name} cannot be written: {error}"));
                continue 'again;
            }
            return Ok(());
        }
    }

    /// Carries out one step. The inner error is the number of a device that cannot be written, with
    /// the error of the write.
    fn run_step(
        &self,
        step: &MirrorStep,
        journal: JournalId,
        settings: &JournalSettings,
    ) -> Result<Result<(), (usize, IoError)>, JournalError> {
        let failed = |error| JournalError::Io { name: self.name(), error };
        match step {
            MirrorStep::Record(members) => {
                settings
                    .members
                    .record(journal, members)
                    .map_err(|error| JournalError::Record { name: self.name(), error })?;
            }
            MirrorStep::Write { to, position, bytes } => {
                let bytes = AlignedBuffer::from(&bytes[..]);
                if let Err(error) = self.on(*to).write(*position, &bytes, true) {
                    return Ok(Err((*to, error)));
                }
            }
            MirrorStep::Copy(copy) => {
                let mut at = 0;
                while at < copy.len {
                    let len = COPY_BYTES.min(copy.len - at);
                    let mut bytes = AlignedBuffer::new(len as usize);
                    self.on(copy.from).read(copy.position + at, &mut bytes).map_err(failed)?;
                    let written = self.on(copy.to).write(copy.position + at, &bytes, false);
                    at += len;
                    let flush = || if at < copy.len { Ok(()) } else { self.on(copy.to).flush() };
                    if let Err(error) = written.and_then(|()| flush()) {
                        return Ok(Err((copy.to, error)));
                    }
                }
            }
        }
        Ok(Ok(()))
    }

    fn unusable(&self, error: RecoverError) -> JournalError {
        let name = self.name();
        match error {
            RecoverError::On { device, error } => {
                let name = self.name_of(device).to_owned();
                match *error {
                    RecoverError::Superblock(SuperblockInvalid::Foreign) => {
                        JournalError::Foreign(name)
                    }
                    error => JournalError::Unusable { name, error },
                }
            }
            RecoverError::MayBeStale { device, .. } => {
                JournalError::MayBeStale { name: self.name_of(device).to_owned() }
            }
            RecoverError::TwoJournals { .. } | RecoverError::Split { .. } => {
                JournalError::NoMirror { name, error }
            }
            error => JournalError::Unusable { name, error },
        }
    }

    /// Erases a journal that failed and whose records are all void.
    fn erase(&self) -> Result<(), JournalError> {
        let name = self.name();
        tracing::warn!(
            journal = %name,
            "reformatting a journal that had failed; the disks have all of its data"
        );
        let zeroes = AlignedBuffer::new(LOG_OFFSET as usize);
        for device in (0..2).filter(|&device| self.backends[device].is_some()) {
            let erased = self.on(device).write(0, &zeroes, true);
            erased.map_err(|error| JournalError::Io { name: name.clone(), error })?;
        }
        Ok(())
    }

    /// Formats a journal on devices that begin with zeroes.
    fn format<W>(
        &mut self,
        settings: &JournalSettings,
        geometry: Geometry,
        buffers: Vec<AlignedBuffer>,
    ) -> Result<Opened<W>, JournalError> {
        let name = self.name();
        let failed = |error| JournalError::Io { name: name.clone(), error };
        let devices: Vec<usize> = (0..2).filter(|&at| self.backends[at].is_some()).collect();
        for &device in &devices {
            let mut head = AlignedBuffer::new(LOG_OFFSET as usize);
            self.on(device).read(0, &mut head).map_err(failed)?;
            if head.iter().any(|&byte| byte != 0) {
                return Err(JournalError::Foreign(self.name_of(device).to_owned()));
            }
        }
        let mut id = [0; 16];
        random(&name, &mut id)?;
        let id = JournalId(id);
        let mut log = Log::format(id, self.size_bytes, geometry, buffers);
        if self.is_mirrored {
            let numbers = draw_member_numbers(&name)?;
            settings
                .members
                .record(id, &numbers)
                .map_err(|error| JournalError::Record { name: name.clone(), error })?;
            let claim = AlignedBuffer::from(&Superblock::unfinished()[..]);
            for &device in &devices {
                for position in [0, SUPERBLOCK_BYTES as u64] {
                    self.on(device).write(position, &claim, true).map_err(failed)?;
                }
            }
            log = log.mirrored(numbers);
            self.readable = [true; 2];
        }
        let superblock = log.superblock().clone();
        tracing::info!(journal = %name, %id, "formatted journal");
        Ok((log, Found::empty(superblock)))
    }
}

/// Draws the random numbers of two members.
fn draw_member_numbers(name: &str) -> Result<[u64; 2], JournalError> {
    let mut bytes = [0; 16];
    random(name, &mut bytes)?;
    let (a, b) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    // Neither number is zero, and the two differ in their lowest bit.
    Ok([number(a) | 1, number(b) & !1 | 2])
}

fn random(name: &str, bytes: &mut [u8]) -> Result<(), JournalError> {
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
        .map(drop)
        .map_err(|_| JournalError::Io { name: name.to_owned(), error: IoError::NoMemory })
}

/// Reads a log sequentially from the first readable device. A read that fails there is tried on
/// each readable device.
pub(crate) struct Reader<'a> {
    devices: &'a Devices,
    ahead: Option<ReadAhead<'a>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(devices: &'a Devices) -> Self {
        let mut readable = (0..2).filter(|&device| devices.readable[device]);
        let backend = readable.find_map(|device| devices.backend(device));
        Self { devices, ahead: backend.map(ReadAhead::new) }
    }

    /// Fills `bytes` from `position`.
    pub(crate) fn read(&mut self, position: u64, bytes: &mut [u8]) -> IoResult {
        if let Some(ahead) = &mut self.ahead
            && ahead.read(position, bytes).is_ok()
        {
            return Ok(());
        }
        let start = position / BLOCK_BYTES * BLOCK_BYTES;
        let end = (position + bytes.len() as u64).next_multiple_of(BLOCK_BYTES);
        let mut blocks = AlignedBuffer::new((end - start) as usize);
        self.devices.read(start, &mut blocks)?;
        let from = (position - start) as usize;
        bytes.copy_from_slice(&blocks[from..from + bytes.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ahead::PIECE_BYTES;
    use super::*;
    use forebay_backend::MemoryBackend;
    use forebay_backend::layers::{ErrorLayer, ErrorRule};
    use forebay_types::ByteRange;

    #[test]
    fn a_walk_reads_sequentially_in_long_pieces() {
        let memory = MemoryBackend::new(16 << 20).unwrap();
        for block in 0..4096_u64 {
            let bytes = AlignedBuffer::from(&[(block % 251) as u8; 4096][..]);
            Blocking::new(&memory).write(block * 4096, &bytes, false).unwrap();
        }
        let mut device = Device::new(&memory);
        let mut buffer = [0; 8192];
        // A walk reads a header, then its whole batch, then the next header.
        for block in (0..4096_u64).step_by(2) {
            device.read_at(block * 4096, &mut buffer[..4096]).unwrap();
            device.read_at(block * 4096, &mut buffer).unwrap();
            assert_eq!(buffer[..4096], [(block % 251) as u8; 4096]);
            assert_eq!(buffer[4096..], [((block + 1) % 251) as u8; 4096]);
        }
        let pieces = (16 << 20) / PIECE_BYTES;
        assert!(memory.io_count().unwrap().reads <= pieces + 2, "{:?}", memory.io_count());
        device.read_at(4096, &mut buffer[..4096]).unwrap();
        assert_eq!(buffer[..4096], [1; 4096], "before the window");
    }

    #[test]
    fn a_bad_block_does_not_fail_reads_of_its_neighbours() {
        let memory = Arc::new(MemoryBackend::new(16 << 20).unwrap());
        let bad = ErrorRule { range: Some(ByteRange::new(8192, 4096)), ..ErrorRule::default() };
        let errors = ErrorLayer::new(memory as _, bad);
        let mut device = Device::new(&errors);
        let mut buffer = [1; 4096];
        device.read_at(0, &mut buffer).unwrap();
        device.read_at(4096, &mut buffer).unwrap();
        assert!(device.read_at(8192, &mut buffer).is_err());
        device.read_at(12288, &mut buffer).unwrap();
    }
}
