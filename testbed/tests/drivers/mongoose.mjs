// Saves one document through a model and reads it back; the URI is the first argument.
import mongoose from 'mongoose';

await mongoose.connect(process.argv[2], { dbName: 'mongoose' });
const User = mongoose.model('User', new mongoose.Schema({ name: { type: String, required: true } }));
await User.create({ name: 'Ada' });
console.log((await User.findOne({ name: 'Ada' })).name);
await mongoose.disconnect();
