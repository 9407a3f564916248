# syntax=docker/dockerfile:1
# Keyward alone: an empty image with one static program, which runs as nobody in particular.
#
#     docker build --tag keyward:0.1.0 .
#
# Without an engine and without another image, deploy/image makes the same image from the program of deploy/release.
# Where Keyward is tested, that image was built and run; the first stage below was not.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    target=$(rustc -vV | sed -n 's/^host: //p') && \
    RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=/src=keyward --remap-path-prefix=/usr/local/cargo=cargo" \
    cargo build --release --locked --package keyward --bin keyward --target "$target" && \
    install -D "target/$target/release/keyward" /out/keyward && strip --strip-debug /out/keyward

FROM scratch
COPY --from=build /out/keyward /usr/local/bin/keyward
# Any number but 0: the process owns no file and writes none.
USER 65532:65532
# Clients, and the admin pages.
EXPOSE 27117 9216
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/keyward"]
CMD ["run", "--config", "/etc/keyward/keyward.yaml"]
