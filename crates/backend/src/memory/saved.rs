//! A store in memory that is loaded from a file when it is opened, and saved to it on request.
//!
//! All of its memory is allocated when the store is opened, so that it counts as used from then on,
//! and no later write can run out of memory. A save writes the content of the moment at which it
//! began, while clients write (`snapshot.rs`). If a save makes no progress for [`STALL`] while
//! writes wait for it, it is aborted, so that a file system that hangs does not block them.

use super::image::StoreImage;
use super::snapshot::{Prepared, Snapshot};
use super::{MemoryBackend, MemoryStoreError};
use crate::count::IoCount;
use crate::sync::{lock, read, write};
use crate::timer::{Timer, TimerHandle};
use crate::{Backend, Description, Extent, Io, IoKind, OpenOptions, SaveState};
use forebay_types::{ByteRange, Size};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime};

/// How long writes wait for a save that makes no progress, before it is aborted.
const STALL: Duration = Duration::from_secs(5);

/// The error of a save that was aborted after [`STALL`].
fn stalled() -> io::Error {
    let seconds = STALL.as_secs();
    let text = format!("the save made no progress for {seconds} s while writes waited for it");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// Bytes of all these stores in the process.
static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The number of the next save of any store.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The memory that all stores with an image have allocated in this process, in bytes.
pub fn saved_memory_bytes() -> u64 {
    ALLOCATED_BYTES.load(Ordering::Relaxed)
}

/// A store in memory with an image.
pub(super) struct SavedMemory {
    store: Arc<SavedStore>,
    path: PathBuf,
    every: Option<Duration>,
    /// Held during a save, so that there are never two at once.
    image: Mutex<StoreImage>,
    last: Mutex<PastSaves>,
    /// Aborts a save that makes no progress.
    timer: Timer,
}

/// The saves so far.
#[derive(Default)]
struct PastSaves {
    at: Option<SystemTime>,
    took: Option<Duration>,
    failed: Option<(io::ErrorKind, String)>,
    is_saving: bool,
}

struct SavedStore {
    memory: MemoryBackend,
    description: Description,
    /// Whether the store was written since the image was loaded, or since the last save began.
    is_changed: AtomicBool,
    /// The save in progress. Each write holds it shared from before it sets `is_changed` until its
    /// data is copied: a save that clears `is_changed` must include the data of all writes that
    /// have set it.
    save: RwLock<Option<Save>>,
    stall: Duration,
}

struct Save {
    snapshot: Snapshot,
    /// Distinguishes it from others.
    number: u64,
}

impl SavedStore {
    /// Carries out a write, or lets it wait for the save in progress. Returns that save's number,
    /// and how many chunks it has taken, if the caller must begin to watch it.
    fn change(&self, io: Io) -> Option<(u64, u64)> {
        let save = read(&self.save);
        self.is_changed.store(true, Ordering::Relaxed);
        let io = match &*save {
            None => io,
            Some(Save { snapshot, number }) => match snapshot.prepare(&self.memory, io) {
                Prepared::Ready(io) => io,
                Prepared::Waiting { begins_watch, taken } => {
                    return begins_watch.then_some((*number, taken));
                }
            },
        };
        self.memory.run(&io);
        drop(save);
        io.done.complete(Ok(()));
        None
    }

    /// Takes the next chunk for the image. Returns its number; `None` after the last one.
    fn take(&self, number: u64, buffer: &mut [u8]) -> io::Result<Option<u64>> {
        let mut ready = Vec::new();
        let taken = {
            let mut save = write(&self.save);
            let save = save.as_mut().filter(|save| save.number == number);
            save.ok_or_else(stalled)?.snapshot.take(&self.memory, buffer, &mut ready)
        };
        ready.into_iter().for_each(|io| io.done.complete(Ok(())));
        Ok(taken)
    }

    /// Ends a save, and carries out the writes that wait for it.
    fn end(&self, number: u64) {
        let waiting = {
            let mut save = write(&self.save);
            let Some(ended) = save.take_if(|save| save.number == number) else { return };
            let waiting = ended.snapshot.into_waiting();
            waiting.iter().for_each(|io| self.memory.run(io));
            waiting
        };
        waiting.into_iter().for_each(|io| io.done.complete(Ok(())));
    }

    /// Schedules [`SavedStore::check`].
    fn check_later(self: &Arc<Self>, timer: &TimerHandle, number: u64, before: u64) {
        let (store, handle) = (Arc::downgrade(self), timer.clone());
        let at_ns = timer.now_ns() + self.stall.as_nanos() as u64;
        let check = move || {
            if let Some(store) = store.upgrade() {
                store.check(&handle, number, before);
            }
        };
        timer.schedule(at_ns, Box::new(check));
    }

    /// Aborts a save if writes wait for it, and it has taken no chunk since it had taken `before`.
    fn check(self: &Arc<Self>, timer: &TimerHandle, number: u64, before: u64) {
        let taken = match &*read(&self.save) {
            Some(save) if save.number == number => save.snapshot.watch(),
            _ => None,
        };
        match taken {
            Some(taken) if taken == before => self.end(number),
            Some(taken) => self.check_later(timer, number, taken),
            None => {}
        }
    }
}

impl SavedMemory {
    /// Loads a store of this size from its image.
    ///
    /// # Errors
    /// If the size is invalid, there is no memory for it, or the image is unusable.
    pub(super) fn open(
        size_bytes: u64,
        path: &Path,
        every: Option<Duration>,
        options: &OpenOptions,
    ) -> Result<Self, MemoryStoreError> {
        Self::open_with(size_bytes, path, every, options, STALL)
    }

    /// As [`SavedMemory::open`], with another [`STALL`].
    fn open_with(
        size_bytes: u64,
        path: &Path,
        every: Option<Duration>,
        options: &OpenOptions,
        stall: Duration,
    ) -> Result<Self, MemoryStoreError> {
        let mut memory = MemoryBackend::new(size_bytes)?;
        let image = StoreImage::open(path, size_bytes, options.in_use_wait)?;
        memory.allocate()?;
        let last = PastSaves { at: image.load(&memory)?, ..PastSaves::default() };
        let memory = memory.read_only(options.read_only);
        let path = image.path().to_owned();
        let name = format!("memory:{}?save={}", Size(size_bytes), path.display());
        let description = Description { name, ..memory.description().clone() };
        ALLOCATED_BYTES.fetch_add(size_bytes, Ordering::Relaxed);
        let (is_changed, save) = Default::default();
        let store = Arc::new(SavedStore { memory, description, is_changed, save, stall });
        let (image, last, timer) = (Mutex::new(image), Mutex::new(last), Timer::new());
        Ok(Self { store, path, every, image, last, timer })
    }

    fn save_now(&self, image: &mut StoreImage, number: u64) -> io::Result<()> {
        let began = Instant::now();
        let saved = image.save(|buffer| self.store.take(number, buffer));
        self.store.end(number);
        let mut last = lock(&self.last);
        last.is_saving = false;
        match &saved {
            Ok(()) => {
                last.at = Some(SystemTime::now());
                last.took = Some(began.elapsed());
                last.failed = None;
            }
            Err(error) => {
                self.store.is_changed.store(true, Ordering::Relaxed);
                last.failed = Some((error.kind(), error.to_string()));
            }
        }
        saved
    }
}

impl Drop for SavedStore {
    fn drop(&mut self) {
        ALLOCATED_BYTES.fetch_sub(self.description.size_bytes(), Ordering::Relaxed);
    }
}

impl Backend for SavedMemory {
    fn description(&self) -> &Description {
        &self.store.description
    }

    fn submit(&self, io: Io) {
        let Some(io) = io.admit(&self.store.description) else { return };
        self.store.memory.count.add(&io);
        if matches!(io.kind, IoKind::Read | IoKind::Flush) {
            self.store.memory.run(&io);
            io.done.complete(Ok(()));
        } else if let Some((number, taken)) = self.store.change(io) {
            self.store.check_later(self.timer.handle(), number, taken);
        }
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        self.store.memory.extents(range)
    }

    fn io_count(&self) -> Option<IoCount> {
        self.store.memory.io_count()
    }

    fn save(&self) -> io::Result<()> {
        let mut image = lock(&self.image);
        if self.store.description.read_only {
            return Ok(());
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Writes from here on count as changes; those before are in the image.
        {
            let mut save = write(&self.store.save);
            // Held with the swap: in between, it would look as if the image had everything.
            let mut last = lock(&self.last);
            if !self.store.is_changed.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
            let snapshot = Snapshot::new(self.store.description.size_bytes());
            *save = Some(Save { snapshot, number });
            last.is_saving = true;
        }
        self.save_now(&mut image, number)
    }

    fn saved(&self) -> Option<SaveState> {
        let last = lock(&self.last);
        Some(SaveState {
            path: self.path.clone(),
            last: last.at,
            is_changed: last.is_saving || self.store.is_changed.load(Ordering::Relaxed),
            is_saving: last.is_saving,
            took: last.took,
            failed: last.failed.clone(),
            every: self.every,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, Buffer, CompletionSink, IoToken, open};
    use forebay_types::{Fault, Few, IoResult};
    use rustix::fs::{FlockOperation, flock};
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    /// Not a multiple of chunks or pages.
    const SIZE: u64 = (1 << 20) + 3 * 512;

    fn image(directory: &Path) -> PathBuf {
        let path = directory.join("r&m.img");
        fs::write(&path, "").unwrap();
        path
    }

    fn spec(path: &Path) -> String {
        format!("memory:{SIZE}?save={}", path.display().to_string().replace('&', "%26"))
    }

    fn opened(path: &Path) -> Arc<dyn Backend> {
        open(&spec(path), &OpenOptions::default()).unwrap()
    }

    fn refused(spec: &str) -> String {
        open(spec, &OpenOptions::default()).err().map(|error| error.explained()).unwrap()
    }

    fn content(backend: &dyn Backend) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        Blocking::new(backend).read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn it_passes_the_suite() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let spec = format!("memory:16MiB?save={}", path.display().to_string().replace('&', "%26"));
        let backend = open(&spec, &OpenOptions::default()).unwrap();
        crate::conformance::check(&backend);
    }

    #[test]
    fn a_save_that_begins_does_not_look_as_if_it_were_done() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let disk = SavedMemory::open(SIZE, &path, None, &OpenOptions::default()).unwrap();
        Blocking::new(&disk).write(0, &[1; 512], false).unwrap();
        std::thread::scope(|scope| {
            // As a status does, which asks at that moment.
            let last = lock(&disk.last);
            let saving = scope.spawn(|| disk.save().unwrap());
            while disk.store.save.try_read().is_ok() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            assert!(last.is_saving || disk.store.is_changed.load(Ordering::Relaxed));
            drop(last);
            saving.join().unwrap();
        });
        assert!(disk.saved().is_some_and(|saved| saved.last.is_some() && !saved.is_changed));
    }

    #[test]
    fn it_is_loaded_as_it_was_saved() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let disk = opened(&path);
        assert!(disk.saved().is_some_and(|saved| saved.last.is_none() && !saved.is_changed));
        let writes = [(0, 512, 1), (65_536 - 512, 1024, 2), (SIZE - 512, 512, 3)];
        for (offset, len, value) in writes {
            Blocking::new(&*disk).write(offset, &vec![value; len], false).unwrap();
        }
        assert!(disk.saved().unwrap().is_changed);
        disk.save().unwrap();
        let saved = content(&*disk);
        // What is written after the save is lost with the process.
        Blocking::new(&*disk).write(4096, &[9; 512], false).unwrap();
        drop(disk);
        assert_eq!(fs::read(&path).unwrap()[..SIZE as usize], saved, "the file is an image");
        let disk = opened(&path);
        assert!(content(&*disk) == saved);
        assert!(disk.saved().is_some_and(|saved| saved.last.is_some() && !saved.is_changed));
        // Zeroed parts are zeroes in the next image.
        Blocking::new(&*disk).discard(0, 1 << 20).unwrap();
        disk.save().unwrap();
        drop(disk);
        let mut expected = vec![0; SIZE as usize];
        expected[SIZE as usize - 512..].fill(3);
        assert!(content(&*opened(&path)) == expected);
    }

    #[test]
    fn a_save_beside_writes_loses_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        for round in 1..=20u8 {
            let disk = opened(&path);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for sector in 0..2_048 {
                        let bytes = [round; 512];
                        Blocking::new(&*disk).write(sector * 512, &bytes, false).unwrap();
                    }
                });
                while !writer.is_finished() {
                    disk.save().unwrap();
                }
            });
            disk.save().unwrap();
            drop(disk);
            assert!(content(&*opened(&path))[..1 << 20].iter().all(|&byte| byte == round));
        }
    }

    #[test]
    fn a_save_that_fails_leaves_the_former_image() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let disk = opened(&path);
        Blocking::new(&*disk).write(0, &[1; 512], false).unwrap();
        disk.save().unwrap();
        let before = fs::read(&path).unwrap();
        Blocking::new(&*disk).write(0, &[2; 512], false).unwrap();
        // Its name is taken by a directory.
        let new = directory.path().join("r&m.img.new");
        fs::create_dir(&new).unwrap();
        assert!(disk.save().is_err());
        assert!(disk.saved().unwrap().is_changed);
        assert!(fs::read(&path).unwrap() == before);
        fs::remove_dir(&new).unwrap();
        disk.save().unwrap();
        assert_eq!(fs::read(&path).unwrap()[..512], [2; 512]);
        assert!(!new.exists());
    }

    #[test]
    fn images_that_cannot_be_trusted_are_refused_and_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let disk = opened(&path);
        assert!(refused(&spec(&path)).contains("is in use"));
        Blocking::new(&*disk).write(8192, &[1; 512], false).unwrap();
        disk.save().unwrap();
        assert!(refused(&spec(&path)).contains("is in use"), "the new file is locked, too");
        drop(disk);
        let whole = fs::read(&path).unwrap();
        let damage = |offset: u64, bytes: &[u8]| {
            fs::write(&path, &whole).unwrap();
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .write_all_at(bytes, offset)
                .unwrap();
            let before = fs::read(&path).unwrap();
            let text = refused(&spec(&path));
            assert!(fs::read(&path).unwrap() == before);
            text
        };
        let len = whole.len() as u64;
        // One bit of the data, of the table, of the trailer, and of what was never written.
        assert!(damage(8192, &[0]).contains("is damaged at byte 0"));
        assert!(damage(700_000, &[1]).contains("is damaged at byte 655360"));
        assert!(damage(SIZE.next_multiple_of(4096) + 5, &[1]).contains("is damaged"));
        assert!(damage(len - 4096 + 20, &[1]).contains("is damaged"));
        assert!(damage(len - 4096, &[0]).contains("is not an image of a volume in memory"));
        assert!(damage(len, &[0; 4096]).contains("is not an image"), "longer");
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(refused(&spec(&path)).contains("is not an image"), "shorter");
        let mut other = whole.clone();
        super::super::image::with_chunk_size(&mut other, 4096);
        fs::write(&path, &other).unwrap();
        let text = refused(&spec(&path));
        assert!(text.contains("a checksum for every 4096 bytes, which this version"), "{text}");
        fs::write(&path, &whole).unwrap();
        let other = spec(&path).replace(&SIZE.to_string(), "2MiB");
        assert!(refused(&other).contains("holds a volume of 1.0 MiB (1050112 bytes), not 2.0 MiB"));
        assert_eq!(content(&*opened(&path))[8192], 1);

        fs::remove_file(&path).unwrap();
        let text = refused(&spec(&path));
        assert!(text.contains("does not exist") && text.contains("touch"), "{text}");
        assert!(!path.exists());
        assert!(refused(&spec(directory.path())).contains("not a regular file"));
        assert!(refused("memory:1MiB?save=").contains("has no value"));
        assert!(refused("memory:1MiB?every=5m").contains("memory needs save: add save=/var"));
        for every in ["0s", "999ms", "25h", "5"] {
            let text = refused(&format!("{}&every={every}", spec(&path)));
            assert!(text.contains(&format!("every='{every}' is invalid")), "{text}");
        }
        assert!(refused("memory:1MiB?sav=/x").contains("no option 'sav'"));
        assert!(refused("memory:8388607TiB?save=/x").contains("cannot map"));
    }

    /// The results of I/Os, by tag.
    #[derive(Default)]
    struct Results(Mutex<Vec<(u64, IoResult)>>);

    impl CompletionSink for Results {
        fn complete(&self, tag: u64, result: IoResult) {
            lock(&self.0).push((tag, result));
        }
    }

    impl Results {
        /// The tags of the I/Os that have completed, and whether none failed.
        fn tags(&self) -> (Vec<u64>, bool) {
            let results = lock(&self.0);
            let mut tags: Vec<u64> = results.iter().map(|(tag, _)| *tag).collect();
            tags.sort_unstable();
            (tags, results.iter().all(|(_, result)| result.is_ok()))
        }
    }

    const CHUNK: u64 = super::super::CHUNK_BYTES;
    /// 320 chunks, of which 64 may be copied.
    const LARGE: u64 = 320 * CHUNK;

    /// A store with an image, of which each chunk has its number as content.
    fn numbered(directory: &Path, stall: Duration) -> SavedMemory {
        let path = image(directory);
        let options = OpenOptions::default();
        let memory = SavedMemory::open_with(LARGE, &path, None, &options, stall).unwrap();
        for chunk in 0..LARGE / CHUNK {
            let bytes = vec![chunk as u8; CHUNK as usize];
            Blocking::new(&memory).write(chunk * CHUNK, &bytes, false).unwrap();
        }
        memory
    }

    /// Begins a save whose image takes nothing yet.
    fn begin(memory: &SavedMemory) {
        *write(&memory.store.save) = Some(Save { snapshot: Snapshot::new(LARGE), number: 7 });
    }

    /// What [`write_of`] writes.
    static SECTOR: [u8; 512] = [0xee; 512];

    /// A write of one sector of a chunk; the tag is the chunk's number.
    fn write_of(chunk: u64, results: &Arc<Results>) -> Io {
        // SAFETY: it is never freed, and a write only reads its buffers.
        let buffer = unsafe { Buffer::new(SECTOR.as_ptr().cast_mut(), SECTOR.len()) };
        let done = IoToken::new(Arc::clone(results) as _, chunk);
        let kind = IoKind::Write { fua: false };
        Io { kind, offset: chunk * CHUNK, len: 512, buffers: Few::from_buf([buffer]), done }
    }

    /// Writes one sector of each chunk without waiting.
    fn overwrite(memory: &SavedMemory, chunks: std::ops::Range<u64>, results: &Arc<Results>) {
        chunks.for_each(|chunk| memory.submit(write_of(chunk, results)));
    }

    #[test]
    fn a_save_has_the_content_of_its_beginning_whatever_is_written_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let memory = numbered(directory.path(), STALL);
        begin(&memory);
        let results = Arc::new(Results::default());
        overwrite(&memory, 0..320, &results);
        assert_eq!(results.tags(), ((0..64).collect(), true), "the others wait");
        // A read does not wait, and finds what was acknowledged.
        let sector = |chunk: u64| {
            let mut bytes = [0; 512];
            Blocking::new(&memory).read(chunk * CHUNK, &mut bytes).unwrap();
            bytes[0]
        };
        assert_eq!([sector(63), sector(64)], [0xee, 64]);
        let (mut buffer, mut seen) = (vec![0; CHUNK as usize], vec![false; 320]);
        let mut completed = 64;
        while let Some(chunk) = memory.store.take(7, &mut buffer).unwrap() {
            assert!(buffer.iter().all(|&byte| byte == chunk as u8), "chunk {chunk}");
            assert!(!std::mem::replace(&mut seen[chunk as usize], true), "chunk {chunk} again");
            let (tags, _) = results.tags();
            assert!(tags.len() > completed || tags.len() == 320, "each step admits a write");
            completed = tags.len();
        }
        assert!(seen.iter().all(|&seen| seen));
        memory.store.end(7);
        assert_eq!(results.tags(), ((0..320).collect(), true));
        assert!((0..320).all(|chunk| sector(chunk) == 0xee));
        assert!(memory.saved().unwrap().is_changed);
        memory.save().unwrap();
        assert!(!memory.saved().unwrap().is_changed);
        // A write of all chunks waits for the end of the save.
        begin(&memory);
        let done = IoToken::new(Arc::clone(&results) as _, 999);
        let kind = IoKind::Zero { unmap: true };
        memory.submit(Io { kind, offset: 0, len: LARGE, buffers: Few::new(), done });
        assert!(!results.tags().0.contains(&999));
        while memory.store.take(7, &mut buffer).unwrap().is_some() {}
        memory.store.end(7);
        assert!(results.tags().0.contains(&999) && sector(100) == 0);
    }

    /// Regression: each write that waited alone scheduled another check, which went on until the
    /// end of the save.
    #[test]
    fn writes_that_wait_one_after_another_are_watched_once() {
        let directory = tempfile::tempdir().unwrap();
        let memory = numbered(directory.path(), STALL);
        begin(&memory);
        let (results, mut buffer) = (Arc::new(Results::default()), vec![0; CHUNK as usize]);
        overwrite(&memory, 0..64, &results);
        let begun = |chunk: u64| memory.store.change(write_of(chunk, &results)).is_some();
        let mut admit = || {
            memory.store.take(7, &mut buffer).unwrap();
        };
        assert!(begun(64));
        admit();
        assert!(!begun(65), "it is watched already");
        admit();
        let watch = || read(&memory.store.save).as_ref().unwrap().snapshot.watch();
        assert_eq!(watch(), None, "no write waits");
        assert!(begun(66));
        assert_eq!(watch(), Some(2));
        memory.store.end(7);
        assert_eq!(results.tags().0.len(), 67);
    }

    #[test]
    fn a_save_that_makes_no_progress_is_given_up_for_the_writes_that_wait() {
        let directory = tempfile::tempdir().unwrap();
        let memory = numbered(directory.path(), Duration::from_millis(10));
        begin(&memory);
        let results = Arc::new(Results::default());
        overwrite(&memory, 0..320, &results);
        while results.tags().0.len() < 320 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let late = memory.store.take(7, &mut vec![0; CHUNK as usize]).unwrap_err();
        let text = "the save made no progress for 5 s while writes waited for it";
        assert_eq!(late.to_string(), text);
        memory.save().unwrap();
        let image = fs::read(directory.path().join("r&m.img")).unwrap();
        assert!((0..320).all(|chunk| image[chunk * CHUNK as usize] == 0xee));
    }

    #[test]
    fn a_save_leaves_a_file_alone_that_another_process_has_locked() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let new = directory.path().join("r&m.img.new");
        fs::write(&new, "not an image").unwrap();
        let other = File::open(&new).unwrap();
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        let store = opened(&path);
        Blocking::new(&*store).write(0, &[7; 512], false).unwrap();
        assert!(store.save().is_err());
        assert_eq!(fs::read(&new).unwrap(), b"not an image");
        drop(other);
        store.save().unwrap();
        assert!(!new.exists());
    }

    #[test]
    fn an_image_is_not_named_like_the_new_file_of_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let new = directory.path().join("ram.img.new");
        fs::write(&new, "").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&new, &link).unwrap();
        for path in [new, link] {
            let error = refused(&spec(&path));
            assert!(error.contains("ends with .new") && error.contains("rename it"), "{error}");
        }
    }
}
