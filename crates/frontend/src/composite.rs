//! Several front ends on one worker.

use crate::{
    ClientId, ClientRequest, ExtentQuery, FrontEnd, FrontEndEvent, Mailer, Memory, Pins, Service,
    WorkerContext,
};
use forebay_types::Extent;
use forebay_volume::Reply;
use std::sync::Arc;

/// The services of a front end over sockets and of one over a kernel driver.
pub struct SocketsAndDriver<S, D> {
    /// The one over sockets.
    pub sockets: Arc<S>,
    /// The one over a driver.
    pub driver: Arc<D>,
}

/// A message to one of the front ends.
pub enum EitherMessage<S, D> {
    /// To the one over sockets.
    Sockets(S),
    /// To the one over a driver.
    Driver(D),
}

/// The front ends of one worker.
pub struct SocketsAndDriverFrontEnds<S, D> {
    sockets: S,
    driver: D,
}

impl<S: Service, D: Service> Service for SocketsAndDriver<S, D> {
    type FrontEnd = SocketsAndDriverFrontEnds<S::FrontEnd, D::FrontEnd>;

    fn connect(&self, mailer: Mailer<<Self::FrontEnd as FrontEnd>::Message>) {
        self.sockets.connect(mailer.wrapping(EitherMessage::Sockets));
        self.driver.connect(mailer.wrapping(EitherMessage::Driver));
    }

    fn front_end(self: &Arc<Self>) -> Self::FrontEnd {
        let (sockets, driver) = (self.sockets.front_end(), self.driver.front_end());
        SocketsAndDriverFrontEnds { sockets, driver }
    }
}

/// Calls a method of the front end that serves a client.
macro_rules! of_client {
    ($self:ident, $client:expr, $method:ident($($argument:expr),*)) => {
        match $self.driver.serves($client) {
            true => $self.driver.$method($($argument),*),
            false => $self.sockets.$method($($argument),*),
        }
    };
}

impl<S: FrontEnd, D: FrontEnd> FrontEnd for SocketsAndDriverFrontEnds<S, D> {
    type Message = EitherMessage<S::Message, D::Message>;

    fn serves(&self, client: ClientId) -> bool {
        self.driver.serves(client) || self.sockets.serves(client)
    }

    fn event<C: WorkerContext>(&mut self, cx: &mut C, event: FrontEndEvent<'_>) {
        match event {
            FrontEndEvent::Socket(_) => self.sockets.event(cx, event),
            FrontEndEvent::Command { .. } => self.driver.event(cx, event),
        }
    }

    fn message<C: WorkerContext>(&mut self, cx: &mut C, message: Self::Message) {
        match message {
            EitherMessage::Sockets(message) => self.sockets.message(cx, message),
            EitherMessage::Driver(message) => self.driver.message(cx, message),
        }
    }

    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins {
        of_client!(self, request.client, completed(cx, request, reply))
    }

    fn extents<C: WorkerContext>(&mut self, cx: &mut C, query: &ExtentQuery, extents: &[Extent]) {
        of_client!(self, query.client, extents(cx, query, extents));
    }

    fn memory_free<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, memory_free(cx, client));
    }

    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C) {
        self.sockets.resume_input(cx);
        self.driver.resume_input(cx);
    }

    fn has_input(&self) -> bool {
        self.sockets.has_input() || self.driver.has_input()
    }

    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C) {
        self.sockets.end_turn(cx);
        self.driver.end_turn(cx);
    }

    fn tick<C: WorkerContext>(&mut self, cx: &mut C) {
        self.sockets.tick(cx);
        self.driver.tick(cx);
    }

    fn accept<C: WorkerContext>(&mut self, cx: &mut C, accepts: bool) {
        self.sockets.accept(cx, accepts);
        self.driver.accept(cx, accepts);
    }

    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, drain_client(cx, client));
    }

    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, drop_client(cx, client));
    }

    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, abandon_client(cx, client));
    }
}
