# syntax=docker/dockerfile:1
# Keyward alone, as a small image that runs as nobody in particular.
# Not built where Keyward is tested (there is no Docker engine); tests/packaging.rs checks what it names.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package keyward && \
    install -D target/release/keyward /out/keyward

FROM debian:bookworm-slim
COPY --from=build /out/keyward /usr/local/bin/keyward
# Any number but 0: the process owns no file and writes none.
USER 65532:65532
# Clients, and the admin pages.
EXPOSE 27117 9216
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/keyward"]
CMD ["run", "--config", "/etc/keyward/keyward.yaml"]
