//! A queue of a device: a client, whose requests have the numbers of its tags.

use crate::copy::{CopyDirection, RequestCopy};
use crate::{Device, ServeError, TAG_BITS};
use forebay_engine::Place;
use forebay_frontend::{
    ClientId, ClientRequest, DriverCommand, Memory, Peer, PoolAccess, VolumeInfo, WorkerContext,
    serve_io_on_this_thread,
};
use forebay_types::{ByteRange, IoError, IoResult, VolumeId};
use forebay_ublk::{IoCommand, Operation, RequestDescriptor, data_position};
use forebay_volume::{Payload, Reply, RequestKind};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The longest write whose data passes through memory of the worker, in bytes. Longer ones are
/// copied into slots of the pool, which costs more at first, but one copy less.
pub(crate) const SHORT_BYTES_MAX: usize = 16 << 10;

/// Where a tag's request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagPlace {
    /// In the driver: a command waits for the next one.
    Fetching,
    /// Here, until the client may have another one in flight.
    Waiting,
    /// In the worker.
    Submitted,
    /// Nowhere: the driver has ended the tag.
    Ended,
}

/// Whether a queue takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueStage {
    Serving,
    /// The requests in flight are still answered: the server stops, or the volume is removed.
    Draining {
        stops: bool,
    },
    /// The client has left, because the server stops. Requests wait for the next server, or for
    /// this one, if it goes on.
    Suspended,
    /// The client has left. Requests fail.
    Left,
}

/// A queue that this worker serves.
pub(crate) struct DeviceQueue {
    device: Arc<Device>,
    number: u16,
    /// Its place in the front end, which commands are named after.
    place: u16,
    pub(crate) client: ClientId,
    /// The volume's number and its size in bytes.
    volume: (VolumeId, u64),
    tags: Vec<TagPlace>,
    /// The tags that are waiting, oldest first.
    waiting: VecDeque<u16>,
    ended: usize,
    stage: QueueStage,
    /// A request has been answered since a tag began to wait.
    may_resume: bool,
}

impl DeviceQueue {
    /// Enters the device's volume as a client, and fetches from each tag.
    ///
    /// # Errors
    /// With the device, if the volume takes no clients, or the reactor no commands.
    pub(crate) fn join<C: WorkerContext>(
        cx: &mut C,
        device: Arc<Device>,
        number: u16,
        place: u16,
    ) -> Result<Self, (Arc<Device>, ServeError)> {
        let client = cx.join(&Peer::Ublk(device.number()));
        let volume = find_volume(cx, device.volume());
        let entered = volume.filter(|volume| cx.enter(client, volume.id, false));
        let Some(volume) = entered else {
            cx.leave(client, true);
            return Err((device, ServeError::Closed));
        };
        let depth = device.depth();
        let mut queue = Self {
            device,
            number,
            place,
            client,
            volume: (volume.id, volume.size_bytes),
            tags: vec![TagPlace::Ended; usize::from(depth)],
            waiting: VecDeque::with_capacity(usize::from(depth)),
            ended: usize::from(depth),
            stage: QueueStage::Serving,
            may_resume: false,
        };
        warn_unless_flusher();
        for tag in 0..depth {
            queue.ended -= 1;
            if !queue.start(cx, tag, IoCommand::fetch(number, tag)) {
                cx.leave(client, true);
                return Err((queue.device, ServeError::NoCommands));
            }
        }
        queue.device.report(Ok(()));
        Ok(queue)
    }

    /// Whether the driver has ended all of its tags.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended == self.tags.len()
    }

    /// Whether [`DeviceQueue::resume`] may find something to do.
    pub(crate) const fn is_resumable(&self) -> bool {
        self.may_resume
    }

    /// Handles the result of a tag's command.
    pub(crate) fn fetched<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        tag: u16,
        result: io::Result<usize>,
        scratch: &mut Memory,
    ) {
        let at = usize::from(tag);
        assert_eq!(self.tags[at], TagPlace::Fetching, "a tag has one command");
        match result {
            Ok(_) if self.stage == QueueStage::Left => self.commit(cx, tag, Err(IoError::Io)),
            Ok(_) => {
                self.hold(tag);
                // In the order in which they came.
                if self.waiting.len() == 1 {
                    self.resume(cx, scratch);
                }
            }
            Err(error) => {
                if error.raw_os_error() != Some(libc::ENODEV) {
                    let (device, queue) = (self.device.number(), self.number);
                    tracing::warn!(device, queue, tag, %error, "the ublk driver refused a command");
                }
                self.tags[at] = TagPlace::Ended;
                self.ended += 1;
                if self.has_ended() {
                    self.leave(cx);
                }
            }
        }
    }

    /// Submits waiting requests, as many as may be in flight.
    pub(crate) fn resume<C: WorkerContext>(&mut self, cx: &mut C, scratch: &mut Memory) {
        self.may_resume = false;
        while self.stage == QueueStage::Serving
            && let Some(&tag) = self.waiting.front()
            && self.submit(cx, tag, scratch)
        {
            let first = self.waiting.pop_front();
            assert_eq!(first, Some(tag), "requests are submitted in their order");
        }
    }

    /// Submits a tag's request, or refuses it. Returns false if it has to wait.
    fn submit<C: WorkerContext>(&mut self, cx: &mut C, tag: u16, scratch: &mut Memory) -> bool {
        if cx.is_stopping() {
            return false;
        }
        let descriptor = self.device.request(self.number, tag);
        let (kind, range) = match self.parse(&descriptor) {
            Ok(parsed) => parsed,
            Err(error) => {
                let size_bytes = cx.volume_bytes(self.client);
                if size_bytes > self.volume.1 {
                    // It has grown.
                    self.volume.1 = size_bytes;
                    return self.submit(cx, tag, scratch);
                }
                cx.count_refusal(self.client);
                self.commit(cx, tag, Err(error));
                return true;
            }
        };
        if cx.is_full(self.client, 0) || !cx.admit(self.client, kind, range.len, 0) {
            return false;
        }
        let client = self.client;
        let request = ClientRequest { client, cookie: u64::from(tag), kind, range };
        let payload = match kind {
            RequestKind::Write { .. } => self.take_payload(cx, tag, range, scratch),
            _ => Ok(Payload::None),
        };
        self.tags[usize::from(tag)] = TagPlace::Submitted;
        match payload {
            Ok(payload) => {
                if let Err(refusal) = cx.submit(&request, payload) {
                    if is_withheld(cx, Err(refusal.error)) {
                        self.tags[usize::from(tag)] = TagPlace::Waiting;
                        return false;
                    }
                    self.commit(cx, tag, Err(refusal.error));
                }
            }
            Err(error) => {
                self.report(tag, &error);
                self.commit(cx, tag, Err(IoError::Io));
            }
        }
        true
    }

    /// The verb and the range of a request.
    fn parse(&self, descriptor: &RequestDescriptor) -> Result<(RequestKind, ByteRange), IoError> {
        let operation = descriptor.operation().ok_or(IoError::NotSupported)?;
        let kind = match operation {
            Operation::Flush => return Ok((RequestKind::Flush, ByteRange::new(0, 0))),
            Operation::Read => RequestKind::Read,
            Operation::Write { fua } => RequestKind::Write { fua },
            Operation::Discard => RequestKind::Trim { fua: false },
            Operation::WriteZeroes { fua, unmap } => RequestKind::Zero { fua, unmap },
        };
        let range = descriptor.range().ok_or(IoError::Invalid)?;
        if range.len == 0 || range.end() > self.volume.1 {
            return Err(IoError::Invalid);
        }
        Ok((kind, range))
    }

    /// Takes the data of a write.
    fn take_payload<'a, C: WorkerContext>(
        &self,
        cx: &mut C,
        tag: u16,
        range: ByteRange,
        scratch: &'a mut Memory,
    ) -> io::Result<Payload<'a, Memory>> {
        let mut copy = self.copy(tag, CopyDirection::FromRequest);
        let len = range.len as usize;
        if len <= SHORT_BYTES_MAX {
            let bytes = &mut scratch.bytes_mut()[..len];
            // SAFETY: the memory is borrowed until the copy has ended.
            unsafe { copy.add(bytes.as_mut_ptr(), len) }?;
            expect_all(copy, range)?;
            return Ok(Payload::Borrowed(bytes));
        }
        if let Some(staged) = cx.stage(self.client, range) {
            let mut added = Ok(());
            staged.each_piece(0, |memory, len| {
                // SAFETY: staged slots belong to this payload until they are handed over.
                added = unsafe { copy.add(memory, len) };
                added.is_ok()
            });
            added?;
            expect_all(copy, range)?;
            return Ok(Payload::Staged(staged.take()));
        }
        let mut memory = Memory::new(len);
        // SAFETY: the memory outlives the copy.
        unsafe { copy.add(memory.bytes_mut().as_mut_ptr(), len) }?;
        expect_all(copy, range)?;
        Ok(Payload::Owned(memory))
    }

    /// Answers a request of this queue.
    pub(crate) fn answer<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: &Reply<'_, Memory>,
    ) {
        let tag = request.cookie as u16;
        assert_eq!(self.tags[usize::from(tag)], TagPlace::Submitted, "a request is answered once");
        let mut result = reply.result;
        if request.kind == RequestKind::Read && result.is_ok() {
            let given = self.give_data(&**cx.pool(), tag, request.range, reply);
            result = given.map_err(|error| {
                self.report(tag, &error);
                IoError::Io
            });
        }
        match is_withheld(cx, result) {
            true => self.hold(tag),
            false => self.commit(cx, tag, result),
        }
        self.may_resume |= !self.waiting.is_empty();
        if matches!(self.stage, QueueStage::Draining { .. }) {
            self.drain(cx);
        }
    }

    /// Gives the driver the data of a read.
    fn give_data(
        &self,
        pool: &impl PoolAccess,
        tag: u16,
        range: ByteRange,
        reply: &Reply<'_, Memory>,
    ) -> io::Result<()> {
        let mut copy = self.copy(tag, CopyDirection::ToRequest);
        for segment in reply.segments {
            let (shard, segment) = (usize::from(segment.shard), segment.segment);
            let memory = match segment.place {
                Place::Slot { slot, offset } => {
                    pool.line(shard, slot).wrapping_add(offset as usize)
                }
                Place::Private { offset } => {
                    let memory = reply.memory.as_ref();
                    let memory = memory.expect("private segments come with their memory");
                    memory.as_ptr().wrapping_add(offset as usize)
                }
                Place::Discard => unreachable!("a reply has no discard buffer"),
            };
            // SAFETY: the lines are pinned, and the memory is kept, until this call returns.
            unsafe { copy.add(memory, segment.len as usize) }?;
        }
        // With too little, the driver would give its user what the pages had before.
        expect_all(copy, range)
    }

    fn copy(&self, tag: u16, direction: CopyDirection) -> RequestCopy {
        RequestCopy::new(self.device.fd(), data_position(self.number, tag), direction)
    }

    fn report(&self, tag: u16, error: &io::Error) {
        let (device, queue) = (self.device.number(), self.number);
        tracing::error!(device, queue, tag, %error, "cannot copy the data of a ublk request");
    }

    /// Answers a tag's request, and fetches its next one.
    fn commit<C: WorkerContext>(&mut self, cx: &mut C, tag: u16, result: IoResult) {
        let result = match result {
            Ok(()) => {
                let descriptor = self.device.request(self.number, tag);
                match descriptor.operation() {
                    Some(Operation::Read | Operation::Write { .. }) => {
                        descriptor.range().map_or(0, |range| range.len as i32)
                    }
                    _ => 0,
                }
            }
            Err(error) => -(error.errno() as i32),
        };
        let is_started = self.start(cx, tag, IoCommand::commit_and_fetch(self.number, tag, result));
        assert!(is_started, "the reactor has fetched the request");
    }

    fn start<C: WorkerContext>(&mut self, cx: &mut C, tag: u16, command: IoCommand) -> bool {
        self.tags[usize::from(tag)] = TagPlace::Fetching;
        let key = u32::from(self.place) << TAG_BITS | u32::from(tag);
        let IoCommand { op, argument } = command;
        cx.command(DriverCommand { key, fd: self.device.fd(), op, argument })
    }

    /// Keeps a tag's request until it can be submitted.
    fn hold(&mut self, tag: u16) {
        self.tags[usize::from(tag)] = TagPlace::Waiting;
        self.waiting.push_back(tag);
    }

    /// Takes no more requests, and leaves once those in flight are answered.
    pub(crate) fn drain<C: WorkerContext>(&mut self, cx: &mut C) {
        if self.stage == QueueStage::Serving {
            self.stage = QueueStage::Draining { stops: cx.is_stopping() };
        }
        let QueueStage::Draining { stops } = self.stage else { return };
        if stops && !cx.is_stopping() {
            // The stop has failed.
            self.stage = QueueStage::Serving;
            self.may_resume = true;
        } else if cx.in_flight(self.client) == 0 {
            self.leave(cx);
        }
    }

    /// Leaves the volume. If the server is stopping, requests that are not answered wait.
    /// Otherwise they fail: the volume is not served any more.
    pub(crate) fn leave<C: WorkerContext>(&mut self, cx: &mut C) {
        if matches!(self.stage, QueueStage::Left | QueueStage::Suspended) {
            return;
        }
        cx.leave(self.client, true);
        if cx.is_stopping() {
            self.stage = QueueStage::Suspended;
            for tag in 0..self.device.depth() {
                if self.tags[usize::from(tag)] == TagPlace::Submitted {
                    // Its answer is dropped. What it did can be done again.
                    self.hold(tag);
                }
            }
        } else {
            self.fail_all(cx);
        }
    }

    /// Fails all requests, now and later.
    fn fail_all<C: WorkerContext>(&mut self, cx: &mut C) {
        self.stage = QueueStage::Left;
        self.waiting.clear();
        for tag in 0..self.device.depth() {
            if matches!(self.tags[usize::from(tag)], TagPlace::Waiting | TagPlace::Submitted) {
                self.commit(cx, tag, Err(IoError::Io));
            }
        }
    }

    /// Submits what waits, as a client of its own again if the server goes on after all: its stop
    /// has failed. Called a few times a second.
    pub(crate) fn tick<C: WorkerContext>(&mut self, cx: &mut C, scratch: &mut Memory) {
        if matches!(self.stage, QueueStage::Draining { .. }) {
            self.drain(cx);
        }
        if self.stage == QueueStage::Suspended && !cx.is_stopping() {
            let volume = find_volume(cx, self.device.volume());
            // It may have grown.
            let (id, size_bytes) = self.volume;
            if volume.is_none_or(|it| it.id != id || it.size_bytes < size_bytes) {
                return self.fail_all(cx);
            }
            if !cx.accept_here() {
                return;
            }
            self.client = cx.join(&Peer::Ublk(self.device.number()));
            if !cx.enter(self.client, self.volume.0, false) {
                return cx.leave(self.client, true);
            }
            self.stage = QueueStage::Serving;
        }
        self.resume(cx, scratch);
    }
}

/// Whether a request is not answered, because the server is stopping: the next one serves it.
fn is_withheld(cx: &impl WorkerContext, result: IoResult) -> bool {
    result == Err(IoError::Shutdown) && cx.is_stopping()
}

/// Ends a copy of a whole request.
fn expect_all(copy: RequestCopy, range: ByteRange) -> io::Result<()> {
    let copied = copy.finish()?;
    assert_eq!(copied, range.len, "the data of a request is as long as its range");
    Ok(())
}

fn find_volume(cx: &impl WorkerContext, name: &str) -> Option<VolumeInfo> {
    let mut found = None;
    cx.each_volume(&mut |volume| {
        if volume.name == name {
            found = Some(volume.clone());
        }
    });
    found
}

fn warn_unless_flusher() {
    if let Err(error) = serve_io_on_this_thread() {
        tracing::warn!(
            %error,
            "cannot mark a worker as one that serves I/O: without CAP_SYS_RESOURCE, a shortage of \
             memory may make it wait for its own device"
        );
    }
}
